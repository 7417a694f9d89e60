//! A collector of spans: hyper's HTTP/2, with the message fields of OTLP by their numbers in
//! opentelemetry-proto.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use cairn_tests::{Daemon, registry::listen, until};
use hyper::{
    HeaderMap, Request, Response,
    body::{Body, Bytes, Frame, Incoming},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Its address in the daemon's network.
pub(super) const COLLECTOR: &str = "127.0.0.1:4317";

mod otlp {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Export {
        #[prost(message, repeated, tag = "1")]
        pub(crate) resource_spans: Vec<ResourceSpans>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub(crate) resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) scope_spans: Vec<ScopeSpans>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub(crate) attributes: Vec<KeyValue>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ScopeSpans {
        #[prost(message, repeated, tag = "2")]
        pub(crate) spans: Vec<Span>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub(crate) trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(crate) span_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub(crate) parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub(crate) name: String,
        #[prost(int32, tag = "6")]
        pub(crate) kind: i32,
        #[prost(fixed64, tag = "7")]
        pub(crate) start: u64,
        #[prost(fixed64, tag = "8")]
        pub(crate) end: u64,
        #[prost(message, repeated, tag = "9")]
        pub(crate) attributes: Vec<KeyValue>,
        #[prost(message, optional, tag = "15")]
        pub(crate) status: Option<Status>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Status {
        #[prost(string, tag = "2")]
        pub(crate) message: String,
        #[prost(int32, tag = "3")]
        pub(crate) code: i32,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct KeyValue {
        #[prost(string, tag = "1")]
        pub(crate) key: String,
        #[prost(message, optional, tag = "2")]
        pub(crate) value: Option<AnyValue>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct AnyValue {
        #[prost(string, optional, tag = "1")]
        pub(crate) text: Option<String>,
        #[prost(int64, optional, tag = "3")]
        pub(crate) number: Option<i64>,
    }
}

pub(super) use otlp::Span;

pub(super) fn attribute(attributes: &[otlp::KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    let value = found
        .and_then(|found| found.value.clone())
        .unwrap_or_default();
    let number = value.number.map(|number| number.to_string());
    value.text.or(number).unwrap_or_default()
}

/// Accepts all spans; ends with the test.
pub(super) struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    task: JoinHandle<()>,
}

impl Collector {
    pub(super) fn start(daemon: &Daemon) -> Self {
        Self::with(daemon, None)
    }

    pub(super) fn with_tls(daemon: &Daemon, tls: TlsAcceptor) -> Self {
        Self::with(daemon, Some(tls))
    }

    fn with(daemon: &Daemon, tls: Option<TlsAcceptor>) -> Self {
        let listener = listen(daemon.yard.pid(), COLLECTOR).expect("a listener in the yard");
        listener.set_nonblocking(true).expect("set");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        let spans = Arc::new(Mutex::new(Vec::new()));
        let seen = spans.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = seen.clone();
                let tls = tls.clone();
                tokio::spawn(async move {
                    let answer =
                        hyper::service::service_fn(move |request| take(request, seen.clone()));
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    match tls {
                        None => server
                            .serve_connection(TokioIo::new(stream), answer)
                            .await
                            .is_ok(),
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => {
                                let stream = TokioIo::new(stream);
                                server.serve_connection(stream, answer).await.is_ok()
                            }
                            Err(_) => false,
                        },
                    }
                });
            }
        });
        Self { spans, task }
    }

    pub(super) fn spans(&self) -> Vec<Span> {
        self.spans.lock().clone()
    }

    /// Waits for this span; returns all spans.
    pub(super) async fn once(&self, what: &str, is: impl Fn(&Span) -> bool) -> Vec<Span> {
        until(what, || async {
            let spans = self.spans();
            spans.iter().any(&is).then_some(spans)
        })
        .await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An empty message with status OK.
struct Good(Vec<Frame<Bytes>>);

impl Body for Good {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop().map(Ok))
    }
}

async fn take(
    request: Request<Incoming>,
    seen: Arc<Mutex<Vec<Span>>>,
) -> Result<Response<Good>, hyper::Error> {
    let path = request.uri().path().to_owned();
    assert_eq!(
        path,
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    );
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))
        .await
        .transpose()?
    {
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    let export = otlp::Export::decode(&bytes[5..]).expect("it decodes");
    for one in export.resource_spans {
        let resource = one.resource.expect("it says whose");
        assert_eq!(attribute(&resource.attributes, "service.name"), "cairn");
        let spans = one.scope_spans.into_iter().flat_map(|scope| scope.spans);
        seen.lock().extend(spans);
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    let body = Good(vec![
        Frame::trailers(trailers),
        Frame::data(Bytes::from_static(&[0; 5])),
    ]);
    let answer = Response::builder().header("content-type", "application/grpc");
    Ok(answer.body(body).expect("an answer"))
}
