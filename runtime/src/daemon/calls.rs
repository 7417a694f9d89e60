//! Counts of gRPC calls, of CRI and of `cairn.v1`: by method and code, and how long each took.
//!
//! Stands outside of the deadlines, so that a call which they end is counted by the code that its caller gets. One whose
//! caller goes away is `Cancelled`. A stream counts when it begins, by the time until then.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt::Write as _,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{
    Code,
    body::Body,
    codegen::http::{Request, Response},
};
use tower::{Layer, Service};

/// Upper bounds of the histogram, in seconds.
const BUCKETS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0];
/// Three services have half as many; what comes beyond is a client's invention.
const METHODS: usize = 128;

/// Service and method: `RuntimeService`, `RunPodSandbox`.
type Key = (String, String);

#[derive(Default)]
struct Method {
    codes: BTreeMap<i32, u64>,
    buckets: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
}

/// All calls since the start; clones share it.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<BTreeMap<Key, Method>>>);

impl Calls {
    fn record(&self, key: &Key, code: Code, seconds: f64) {
        let mut all = self.0.lock();
        if all.len() >= METHODS && !all.contains_key(key) {
            return;
        }
        let method = all.entry(key.clone()).or_default();
        *method.codes.entry(code.into()).or_default() += 1;
        for (bucket, bound) in method.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
        method.count += 1;
        method.seconds += seconds;
    }

    /// As Prometheus text.
    pub fn render(&self) -> String {
        let all = self.0.lock();
        let mut text = String::from("# TYPE cairn_grpc_calls_total counter\n");
        for ((service, name), method) in &*all {
            for (code, count) in &method.codes {
                let code = Code::from_i32(*code);
                let _ = writeln!(
                    text,
                    "cairn_grpc_calls_total{{service=\"{service}\",method=\"{name}\",code=\"{code:?}\"}} {count}"
                );
            }
        }
        text.push_str("# TYPE cairn_grpc_call_seconds histogram\n");
        for ((service, name), method) in &*all {
            let family = "cairn_grpc_call_seconds";
            let labels = format!("service=\"{service}\",method=\"{name}\"");
            for (count, bound) in method.buckets.iter().zip(BUCKETS) {
                let _ = writeln!(text, "{family}_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            let count = method.count;
            let _ = writeln!(text, "{family}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(text, "{family}_sum{{{labels}}} {}", method.seconds);
            let _ = writeln!(text, "{family}_count{{{labels}}} {count}");
        }
        text
    }
}

/// `/runtime.v1.RuntimeService/RunPodSandbox`; none of a path that is no call's.
fn key(path: &str) -> Option<Key> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let service = service.rsplit('.').next()?;
    let is_name = |text: &str| {
        let letters = text.bytes().all(|b| b.is_ascii_alphanumeric());
        letters && (1..=64).contains(&text.len())
    };
    (is_name(service) && is_name(method)).then(|| (service.to_owned(), method.to_owned()))
}

/// A call under way; one that is dropped before its answer was cancelled.
struct UnderWay {
    calls: Calls,
    key: Option<Key>,
    start: Instant,
    code: Code,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            let seconds = self.start.elapsed().as_secs_f64();
            self.calls.record(key, self.code, seconds);
        }
    }
}

impl<S> Layer<S> for Calls {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Counted {
            inner,
            calls: self.clone(),
        }
    }
}

#[derive(Clone)]
pub struct Counted<S> {
    inner: S,
    calls: Calls,
}

impl<S> Service<Request<Body>> for Counted<S>
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
        let under_way = UnderWay {
            calls: self.calls.clone(),
            key: key(request.uri().path()),
            start: Instant::now(),
            code: Code::Cancelled,
        };
        let call = self.inner.call(request);
        Box::pin(async move {
            // All of it goes along, not its code alone: it tells when it is dropped.
            let mut under_way = under_way;
            let answer = call.await?;
            // A refusal has it among its headers; what has none has begun well.
            let code = answer.headers().get("grpc-status");
            under_way.code = code.map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;

    fn request(path: &str) -> Request<Body> {
        let request = Request::builder().uri(path);
        request.body(Body::empty()).expect("a request")
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_by_method_and_code_with_their_time() {
        let calls = Calls::default();
        let answer = tower::service_fn(|request: Request<Body>| async move {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            Ok::<_, Infallible>(match request.uri().path().ends_with("Good") {
                true => Response::new(Body::empty()),
                false => tonic::Status::not_found("x").into_http(),
            })
        });
        let service = calls.layer(answer);
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
        let call = calls.layer(never).oneshot(request("/a.S/M"));
        let late = std::time::Duration::from_millis(1);
        assert!(tokio::time::timeout(late, call).await.is_err());
        let text = calls.render();
        assert!(
            text.contains("method=\"M\",code=\"Cancelled\"} 1"),
            "{text}"
        );
    }

    #[test]
    fn invented_methods_do_not_grow_the_table_without_end() {
        let calls = Calls::default();
        for n in 0..2 * METHODS {
            calls.record(&("S".into(), format!("M{n}")), Code::Unimplemented, 0.0);
        }
        assert_eq!(calls.0.lock().len(), METHODS);
    }
}
