//! Layers around every gRPC call: count (`calls.rs`), trace of CRI calls (`traced.rs`), deadline
//! (`cri/deadline.rs`). The deadline is innermost: counts and traces match the caller's view.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use tonic::{
    body::Body,
    codegen::http::{Request, Response},
};
use tower::{Layer, Service};

use super::{calls::Calls, traced};
use crate::{
    cri::deadline::{allowed, in_time},
    spans::Recorder,
};

#[derive(Clone)]
pub(super) struct EveryCall {
    pub calls: Calls,
    /// `None` without tracing.
    pub recorder: Option<Recorder>,
}

impl<S> Layer<S> for EveryCall {
    type Service = Around<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Around {
            inner,
            every: self.clone(),
        }
    }
}

#[derive(Clone)]
pub(super) struct Around<S> {
    inner: S,
    every: EveryCall,
}

impl<S> Service<Request<Body>> for Around<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let EveryCall { calls, recorder } = &self.every;
        let mut under_way = calls.begin(request.uri().path());
        let recorder = recorder.as_ref();
        let span = recorder.and_then(|recorder| traced::begin(recorder, &request));
        let allowed = allowed(request.headers());
        let call = in_time(allowed, self.inner.call(request));
        Box::pin(async move {
            let answer = match span {
                None => call.await?,
                Some(span) => traced::during(span, call).await?,
            };
            under_way.answered(answer.headers());
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;

    fn around(calls: &Calls) -> EveryCall {
        EveryCall {
            calls: calls.clone(),
            recorder: None,
        }
    }

    fn request(path: &str) -> Request<Body> {
        let request = Request::builder().uri(path);
        request.body(Body::empty()).expect("a request")
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_by_method_and_code_with_their_time() {
        let calls = Calls::default();
        let answer = tower::service_fn(|request: Request<Body>| async move {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            Ok::<_, Infallible>(if request.uri().path().ends_with("Good") {
                Response::new(Body::empty())
            } else {
                tonic::Status::not_found("x").into_http()
            })
        });
        let service = around(&calls).layer(answer);
        for path in ["/a.v1.S/Good", "/a.v1.S/Good", "/a.v1.S/Bad", "/", "/a/\"x"] {
            let _ = service.clone().oneshot(request(path)).await;
        }
        let text = calls.render();
        for line in [
            "cairn_grpc_calls_total{service=\"S\",method=\"Good\",code=\"Ok\"} 2",
            "cairn_grpc_calls_total{service=\"S\",method=\"Bad\",code=\"NotFound\"} 1",
            "cairn_grpc_call_seconds_bucket{service=\"S\",method=\"Good\",le=\"0.025\"} 0",
            "cairn_grpc_call_seconds_bucket{service=\"S\",method=\"Good\",le=\"0.1\"} 2",
            "cairn_grpc_call_seconds_bucket{service=\"S\",method=\"Good\",le=\"+Inf\"} 2",
            "cairn_grpc_call_seconds_count{service=\"S\",method=\"Bad\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("_calls_total{").count(), 2, "{text}");
    }

    #[tokio::test]
    async fn a_call_whose_caller_leaves_is_counted_as_cancelled() {
        let calls = Calls::default();
        let never = tower::service_fn(|_| std::future::pending::<Result<_, Infallible>>());
        let call = around(&calls).layer(never).oneshot(request("/a.S/M"));
        let late = std::time::Duration::from_millis(1);
        assert!(tokio::time::timeout(late, call).await.is_err());
        let text = calls.render();
        assert!(
            text.contains("method=\"M\",code=\"Cancelled\"} 1"),
            "{text}"
        );
    }
}
