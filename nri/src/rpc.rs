//! ttrpc over a multiplexed connection, by method name. The only file that names `ttrpc`.
//!
//! What `ttrpc` 0.10 leaves to its user is done here:
//! - request ids go up on the wire (NRI-140): each call is polled once under a mutex, which takes its
//!   id and queues it, and at most [`MAX_CALLS`] calls are open, so that the queue has room for each;
//! - a message that is too long is refused before it is sent, with both sizes (NRI-131, NRI-143);
//! - a timeout is a variant, not a text (NRI-137): our clock decides, a status 4 counts as the same;
//! - every method of a service is served, so that an unknown one is UNIMPLEMENTED (NRI-141);
//! - a peer that floods us with requests is read no further than [`MAX_CALLS`] of them, and not
//!   while an answer waits to be written (NRI-108): ttrpc answers also what is no call, each on a
//!   task of its own, and those would pile up.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Semaphore,
    task::coop::unconstrained,
    time::{Instant, timeout_at},
};
use ttrpc::{
    asynchronous::{
        Client as TtrpcClient, MethodHandler, Server, Service, TtrpcContext, transport,
    },
    proto::{Request, Response},
};

use crate::mux::MuxConn;

/// The longest ttrpc message, envelope included (NRI-131).
pub(crate) const MAX_MESSAGE: usize = 4 << 20;
/// Room for the envelope of a request: service, method, timeout and lengths.
pub(crate) const ENVELOPE: usize = 256;
/// Calls open at once on a connection, either way.
const MAX_CALLS: usize = 64;

/// The status codes that mean something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Unavailable = 14,
}

/// An error that crosses the wire: a code and one line of text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// A gRPC code.
    pub code: i32,
    /// What went wrong, for a person.
    pub message: String,
}

impl Status {
    /// A status of one of the codes we use.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code: code as i32,
            message: message.into(),
        }
    }

    /// True if this is the code.
    pub fn is(&self, code: Code) -> bool {
        self.code == code as i32
    }
}

/// Characters of a peer's text that go into ours.
const MAX_TEXT: usize = 1000;

/// A text from a peer as it may stand in a log or an error: one line, not too long.
pub(crate) fn one_line(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.chars().take(MAX_TEXT).map(plain).collect();
    if line.len() < text.len() {
        line.push('…');
    }
    line
}

/// How a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer answered with an error.
    #[error("{0}")]
    Status(Status),
    /// No answer in time: by our clock, or the peer says so.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The connection is gone or was abused.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The request cannot be sent.
    #[error("request of {len} bytes is longer than the {MAX_MESSAGE} a message may have")]
    TooLong { len: usize },
    /// The answer is no message of the expected kind.
    #[error("answer cannot be decoded: {0}")]
    BadReply(String),
}

/// Calls the peer's services.
#[derive(Clone)]
pub(crate) struct Client {
    ttrpc: TtrpcClient,
    /// Held while a call takes its id and its place in the queue.
    order: Arc<Mutex<()>>,
    open: Arc<Semaphore>,
}

impl Client {
    /// Must be called inside a tokio runtime.
    pub(crate) fn new(conn: MuxConn) -> Self {
        Self {
            ttrpc: TtrpcClient::new(transport::Socket::new(conn)),
            order: Arc::default(),
            open: Arc::new(Semaphore::new(MAX_CALLS)),
        }
    }

    /// Calls `service.method` and waits at most `limit`. The peer is told `told`, the time after
    /// which it may stop working on the answer.
    pub(crate) async fn call(
        &self,
        service: &str,
        method: &str,
        payload: Vec<u8>,
        limit: Duration,
        told: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let len = payload.len() + ENVELOPE;
        if len > MAX_MESSAGE {
            return Err(CallError::TooLong { len });
        }
        let deadline = Instant::now() + limit;
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload,
            timeout_nano: i64::try_from(told.as_nanos()).unwrap_or(i64::MAX),
            ..Request::default()
        };
        let answer = timeout_at(deadline, self.send(request)).await;
        match answer {
            Ok(Ok(response)) => Ok(response.payload),
            Err(_) => Err(CallError::TimedOut(limit)),
            Ok(Err(ttrpc::Error::RpcStatus(s))) if s.code == Code::DeadlineExceeded as i32 => {
                Err(CallError::TimedOut(limit))
            }
            Ok(Err(ttrpc::Error::RpcStatus(s))) => Err(CallError::Status(Status {
                code: s.code,
                message: one_line(&s.message),
            })),
            // ttrpc's own timeout is only a text; the clock says the same without reading it.
            Ok(Err(_)) if Instant::now() >= deadline => Err(CallError::TimedOut(limit)),
            Ok(Err(e)) => Err(CallError::Lost(e.to_string())),
        }
    }

    async fn send(&self, request: Request) -> ttrpc::Result<Response> {
        let _open = self
            .open
            .acquire()
            .await
            .map_err(|e| ttrpc::Error::Others(e.to_string()))?;
        let mut call = pin!(unconstrained(self.ttrpc.request(request)));
        let first = poll_fn(|cx| {
            let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            Poll::Ready(call.as_mut().poll(cx))
        });
        match first.await {
            Poll::Ready(answer) => answer,
            Poll::Pending => call.await,
        }
    }
}

/// A call that has come in.
pub(crate) struct Incoming {
    pub(crate) service: &'static str,
    pub(crate) method: &'static str,
    pub(crate) payload: Vec<u8>,
    /// How long the caller waits for the answer; `None` for ever.
    #[cfg_attr(
        not(feature = "stub"),
        allow(dead_code, reason = "the runtime side does not ask")
    )]
    pub(crate) limit: Option<Duration>,
}

/// Whoever answers calls.
#[async_trait::async_trait]
pub(crate) trait Serve: Send + Sync + 'static {
    async fn answer(&self, call: Incoming) -> Result<Vec<u8>, Status>;
}

/// The methods of one service.
pub(crate) struct Methods {
    pub(crate) service: &'static str,
    pub(crate) methods: &'static [&'static str],
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

/// Answers the calls that come in on `conn`.
pub(crate) async fn serve(
    conn: MuxConn,
    services: &[Methods],
    serve: Arc<dyn Serve>,
) -> io::Result<Serving> {
    let gate = Arc::new(Gate::default());
    let table = services.iter().map(|s| {
        let methods = s.methods.iter().map(|method| {
            let handler = Handler {
                service: s.service,
                method,
                serve: serve.clone(),
                gate: gate.clone(),
            };
            let handler: Box<dyn MethodHandler + Send + Sync> = Box::new(handler);
            ((*method).to_owned(), handler)
        });
        let service = Service {
            methods: methods.collect(),
            streams: HashMap::new(),
        };
        (s.service.to_owned(), service)
    });
    let conn = Gated {
        conn,
        gate: gate.clone(),
        stuck: false,
    };
    let mut server = Server::new()
        .add_listener(transport::Listener::new(OneConnection(Some(conn))))
        .register_service(table.collect());
    server.start().await.map_err(io::Error::other)?;
    Ok(Serving {
        _server: Mutex::new(server),
    })
}

struct Handler {
    service: &'static str,
    method: &'static str,
    serve: Arc<dyn Serve>,
    gate: Arc<Gate>,
}

#[async_trait::async_trait]
impl MethodHandler for Handler {
    async fn handler(&self, ctx: TtrpcContext, request: Request) -> ttrpc::Result<Response> {
        let _open = self.gate.enter();
        let call = Incoming {
            service: self.service,
            method: self.method,
            payload: request.payload,
            limit: u64::try_from(ctx.timeout_nano)
                .ok()
                .filter(|nanos| *nanos > 0)
                .map(Duration::from_nanos),
        };
        let answer = without_panic(self.serve.answer(call)).await;
        let answer = answer.and_then(|payload| {
            let len = payload.len() + ENVELOPE;
            if len > MAX_MESSAGE {
                let text = format!(
                    "answer of {len} bytes is longer than the {MAX_MESSAGE} a message may have"
                );
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
                    code: status.code,
                    message: status.message,
                    ..Default::default()
                }),
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

/// Counts the calls being handled, and holds reading back while they are too many.
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

    fn reader(&self) -> MutexGuard<'_, Option<Waker>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let waker = self.reader().take();
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
    /// An answer waits to be written: nothing more is read meanwhile, or answers pile up.
    stuck: bool,
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_shut() {
            *self.gate.reader() = Some(cx.waker().clone());
            // Checked again: a call that ended in between has found no waker.
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
        let written = Pin::new(&mut self.conn).poll_write(cx, buf);
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

/// A listener that has one connection to give (NRI-116).
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
mod against_go;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_text_becomes_one_short_line() {
        assert_eq!(one_line("two\nlines\u{1b}[31m"), "two lines [31m");
        let long = one_line(&"ä".repeat(5000));
        assert_eq!(long.chars().count(), MAX_TEXT + 1);
        assert!(long.ends_with('…'));
    }

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let answer: Result<(), _> = without_panic(async { panic!("on purpose") }).await;
        assert!(answer.unwrap_err().message.contains("panicked"));
    }
}
