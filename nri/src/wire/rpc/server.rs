//! Answers the peer's calls.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use protobuf::EnumOrUnknown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ttrpc::{
    asynchronous::{MethodHandler, Server, Service, TtrpcContext, transport},
    proto::{Request, Response},
};

use super::{
    corrections::with_gos_code,
    status::{Code, ENVELOPE, MAX_CALLS, MAX_MESSAGE, Status},
};
use crate::wire::mux::MuxConn;

/// A received call.
pub(crate) struct Incoming {
    pub(crate) method: &'static str,
    pub(crate) payload: Vec<u8>,
    /// Time the caller waits for the answer; `None` without a limit.
    #[cfg_attr(
        not(feature = "stub"),
        allow(dead_code, reason = "the runtime side does not ask")
    )]
    pub(crate) limit: Option<Duration>,
    /// Its metadata.
    #[cfg_attr(
        not(feature = "stub"),
        allow(dead_code, reason = "the runtime side does not ask")
    )]
    pub(crate) metadata: HashMap<String, Vec<String>>,
}

/// A handler of calls.
#[async_trait::async_trait]
pub(crate) trait Serve: Send + Sync + 'static {
    async fn answer(&self, call: Incoming) -> Result<Vec<u8>, Status>;
}

/// A running server. Dropping it ends it, with all handlers.
pub(crate) struct Serving {
    // A mutex only because a server is not Sync.
    _server: Mutex<Server>,
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Serving")
    }
}

/// Answers the calls of the service's methods received on `conn`.
pub(crate) async fn serve(
    conn: MuxConn,
    service: &str,
    methods: &[&'static str],
    serve: Arc<dyn Serve>,
) -> io::Result<Serving> {
    let gate = Arc::new(Gate::default());
    let methods = methods.iter().map(|method| {
        let handler = Handler {
            method,
            serve: serve.clone(),
            gate: gate.clone(),
        };
        let handler: Box<dyn MethodHandler + Send + Sync> = Box::new(handler);
        ((*method).to_owned(), handler)
    });
    let handlers = Service {
        methods: methods.collect(),
        streams: HashMap::new(),
    };
    let table = HashMap::from([(service.to_owned(), handlers)]);
    let conn = Gated {
        conn,
        gate: gate.clone(),
        stuck: false,
    };
    let mut server = Server::new()
        .add_listener(transport::Listener::new(OneConnection(Some(conn))))
        .register_service(table);
    server.start().await.map_err(io::Error::other)?;
    Ok(Serving {
        _server: Mutex::new(server),
    })
}

struct Handler {
    method: &'static str,
    serve: Arc<dyn Serve>,
    gate: Arc<Gate>,
}

#[async_trait::async_trait]
impl MethodHandler for Handler {
    async fn handler(&self, ctx: TtrpcContext, request: Request) -> ttrpc::Result<Response> {
        let _open = self.gate.enter();
        let call = Incoming {
            method: self.method,
            payload: request.payload,
            limit: u64::try_from(ctx.timeout_nano)
                .ok()
                .filter(|nanos| *nanos > 0)
                .map(Duration::from_nanos),
            metadata: ctx.metadata,
        };
        let answer = without_panic(self.serve.answer(call)).await;
        let answer = answer.and_then(|payload| {
            let len = payload.len() + ENVELOPE;
            if len > MAX_MESSAGE {
                let text = format!("answer of {len} bytes exceeds the limit of {MAX_MESSAGE}");
                return Err(Status::new(Code::ResourceExhausted, text));
            }
            Ok(payload)
        });
        Ok(match answer {
            Ok(payload) => Response {
                payload,
                ..Response::default()
            },
            Err(status) => Response {
                status: Some(ttrpc::proto::Status {
                    code: EnumOrUnknown::from_i32(status.code),
                    message: status.message,
                    ..Default::default()
                })
                .into(),
                ..Response::default()
            },
        })
    }
}

/// A panic in a handler becomes its answer (table 4.3).
pub(crate) async fn without_panic<T>(
    future: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let mut future = pin!(future);
    poll_fn(move |cx| {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| {
            Poll::Ready(Err(Status::new(Code::Unknown, "the handler panicked")))
        })
    })
    .await
}

/// Counts the calls being handled, and pauses reading at the limit.
#[derive(Default)]
struct Gate {
    open: AtomicUsize,
    reader: Mutex<Option<Waker>>,
}

struct Entered(Arc<Gate>);

impl Gate {
    fn enter(self: &Arc<Self>) -> Entered {
        self.open.fetch_add(1, Ordering::SeqCst);
        Entered(self.clone())
    }

    fn wake(&self) {
        let waker = self.reader.lock().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        self.0.wake();
    }
}

struct Gated {
    conn: MuxConn,
    gate: Arc<Gate>,
    /// An answer waits to be written: reading pauses meanwhile, or answers would pile up.
    stuck: bool,
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_shut() {
            *self.gate.reader.lock() = Some(cx.waker().clone());
            // Checked again: a call that ended in between found no waker.
            if self.is_shut() {
                return Poll::Pending;
            }
        }
        Pin::new(&mut self.conn).poll_read(cx, buf)
    }
}

impl Gated {
    fn is_shut(&self) -> bool {
        self.stuck || self.gate.open.load(Ordering::SeqCst) >= MAX_CALLS
    }
}

impl AsyncWrite for Gated {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let conn = Pin::new(&mut self.conn);
        let written = match with_gos_code(buf) {
            // Shorter than a frame, which is taken completely or not at all.
            Some(message) => conn.poll_write(cx, &message).map_ok(|_| buf.len()),
            None => conn.poll_write(cx, buf),
        };
        let was_stuck = std::mem::replace(&mut self.stuck, written.is_pending());
        if was_stuck && !self.stuck {
            self.gate.wake();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}

/// A listener with a single connection (NRI-116).
struct OneConnection(Option<Gated>);

impl futures_core::Stream for OneConnection {
    type Item = io::Result<Gated>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.0.take() {
            Some(conn) => Poll::Ready(Some(Ok(conn))),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let answer: Result<(), _> = without_panic(async { panic!("on purpose") }).await;
        assert!(answer.unwrap_err().message.contains("panicked"));
    }
}
