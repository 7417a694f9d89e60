//! ttrpc over a multiplexed connection, by method name. The only file that names `ttrpc`.
//!
//! What `ttrpc` 0.10 leaves to its user is done here:
//! - request ids go up on the wire (NRI-140): each call is polled once under a mutex, which takes its
//!   id and queues it, and at most [`MAX_CALLS`] calls are open, so that the queue has room for each;
//! - a message that is too long is refused before it is sent, with both sizes (NRI-131, NRI-143); one that comes in
//!   is answered as Go does (NRI-131);
//! - a data frame in the place of an answer is garbage: ttrpc takes its bytes for the answer (NRI-136);
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
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use protobuf::{EnumOrUnknown, Message as _};
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
    proto::{KeyValue, Request, Response},
};

use crate::wire::mux::MuxConn;

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
    /// Message for people.
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

    /// The code's name, as metrics have it.
    pub(crate) fn name(&self) -> &'static str {
        const NAMES: [&str; 17] = [
            "ok",
            "canceled",
            "unknown",
            "invalid_argument",
            "deadline_exceeded",
            "not_found",
            "already_exists",
            "permission_denied",
            "resource_exhausted",
            "failed_precondition",
            "aborted",
            "out_of_range",
            "unimplemented",
            "internal",
            "unavailable",
            "data_loss",
            "unauthenticated",
        ];
        let known = usize::try_from(self.code).ok();
        known
            .and_then(|code| NAMES.get(code))
            .unwrap_or(&"unknown_code")
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

/// Error of a call.
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
    #[error("request of {len} bytes exceeds the limit of {MAX_MESSAGE}")]
    TooLong { len: usize },
    /// The answer is no message of the expected kind.
    #[error("answer cannot be decoded: {0}")]
    BadReply(String),
}

/// Gives what a call carries beside its request, by the name of its method.
pub(crate) type Metadata = Arc<dyn Fn(&str) -> Vec<(String, String)> + Send + Sync>;

/// Calls the peer's services.
#[derive(Clone)]
pub(crate) struct Client {
    ttrpc: TtrpcClient,
    /// Held while a call takes its id and its place in the queue; how many there were.
    order: Arc<Mutex<u32>>,
    open: Arc<Semaphore>,
    answers: Arc<Answers>,
    metadata: Option<Metadata>,
}

impl Client {
    /// Must be called inside a tokio runtime.
    pub(crate) fn new(conn: MuxConn, metadata: Option<Metadata>) -> Self {
        let answers = Arc::<Answers>::default();
        let conn = Watched {
            conn,
            head: Vec::new(),
            body: 0,
            answers: answers.clone(),
        };
        Self {
            ttrpc: TtrpcClient::new(transport::Socket::new(conn)),
            order: Arc::default(),
            open: Arc::new(Semaphore::new(MAX_CALLS)),
            answers,
            metadata,
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
            metadata: self.metadata(method),
            ..Request::default()
        };
        let call = self.answers.call();
        let answer = timeout_at(deadline, self.send(request, &call)).await;
        match answer {
            _ if call.was_data() => Err(CallError::BadReply("it came in a data frame".to_owned())),
            Ok(Ok(response)) => Ok(response.payload),
            Err(_) => Err(CallError::TimedOut(limit)),
            Ok(Err(ttrpc::Error::RpcStatus(s))) if is_too_long(&s) => {
                let text = format!("the answer is too long: {}", s.message);
                Err(CallError::Status(Status::new(
                    Code::ResourceExhausted,
                    text,
                )))
            }
            Ok(Err(ttrpc::Error::RpcStatus(s)))
                if s.code.value() == Code::DeadlineExceeded as i32 =>
            {
                Err(CallError::TimedOut(limit))
            }
            Ok(Err(ttrpc::Error::RpcStatus(s))) => Err(CallError::Status(Status {
                code: s.code.value(),
                message: one_line(&s.message),
            })),
            // ttrpc's own timeout is only a text; the clock says the same without reading it.
            Ok(Err(_)) if Instant::now() >= deadline => Err(CallError::TimedOut(limit)),
            Ok(Err(e)) => Err(CallError::Lost(e.to_string())),
        }
    }

    fn metadata(&self, method: &str) -> Vec<KeyValue> {
        let pairs = self.metadata.as_ref().map(|metadata| metadata(method));
        let pairs = pairs.into_iter().flatten();
        pairs
            .map(|(key, value)| KeyValue {
                key,
                value,
                ..KeyValue::default()
            })
            .collect()
    }

    async fn send(&self, request: Request, open: &OpenCall) -> ttrpc::Result<Response> {
        let _open = self
            .open
            .acquire()
            .await
            .map_err(|e| ttrpc::Error::Others(e.to_string()))?;
        let mut call = pin!(unconstrained(self.ttrpc.request(request)));
        let first = poll_fn(|cx| {
            let mut calls = self.order.lock();
            // The id that ttrpc takes now.
            open.has_id(2 * *calls + 1);
            *calls += 1;
            Poll::Ready(call.as_mut().poll(cx))
        });
        match first.await {
            Poll::Ready(answer) => answer,
            Poll::Pending => call.await,
        }
    }
}

/// Calls that wait for their answer, by id; true once a data frame came for one.
#[derive(Default)]
struct Answers(Mutex<HashMap<u32, bool>>);

impl Answers {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, bool>> {
        self.0.lock()
    }

    fn call(self: &Arc<Self>) -> OpenCall {
        OpenCall {
            answers: self.clone(),
            id: OnceLock::new(),
        }
    }

    fn came(&self, header: &[u8; HEADER]) {
        let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        if header[8] == DATA
            && let Some(data) = self.lock().get_mut(&id)
        {
            *data = true;
        }
    }
}

/// A call on its way. Dropped: nobody waits for its answer.
struct OpenCall {
    answers: Arc<Answers>,
    id: OnceLock<u32>,
}

impl OpenCall {
    fn has_id(&self, id: u32) {
        let _ = self.id.set(id);
        self.answers.lock().insert(id, false);
    }

    fn was_data(&self) -> bool {
        let id = self.id.get();
        id.is_some_and(|id| self.answers.lock().get(id) == Some(&true))
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if let Some(id) = self.id.get() {
            self.answers.lock().remove(id);
        }
    }
}

/// A client's connection, whose messages are looked at as they come in.
struct Watched {
    conn: MuxConn,
    /// Of the header that comes in now.
    head: Vec<u8>,
    /// What is still to come of the message behind the last header.
    body: usize,
    answers: Arc<Answers>,
}

impl Watched {
    fn look(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.body > 0 {
                let skip = self.body.min(bytes.len());
                self.body -= skip;
                bytes = &bytes[skip..];
                continue;
            }
            let take = (HEADER - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if let Ok(header) = <[u8; HEADER]>::try_from(self.head.as_slice()) {
                let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
                self.body = usize::try_from(length).unwrap_or(usize::MAX);
                self.answers.came(&header);
                self.head.clear();
            }
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.conn).poll_read(cx, buf);
        self.look(&buf.filled()[before..]);
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.conn).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_shutdown(cx)
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
        self.reader.lock()
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

/// A message's header: length, stream, type, flags.
const HEADER: usize = 10;
/// An answer, by its type in the header.
const RESPONSE: u8 = 2;
/// A part of a stream, of which NRI has none.
const DATA: u8 = 3;

/// What ttrpc says of a message that is too long, with INVALID_ARGUMENT.
fn is_too_long(status: &ttrpc::proto::Status) -> bool {
    let text = &status.message;
    status.code.value() == Code::InvalidArgument as i32
        && text.starts_with("message length ")
        && text.contains(" exceed maximum message size of ")
}

/// Two answers as Go gives them: UNIMPLEMENTED to a call of a service that is not there, RESOURCE_EXHAUSTED to one
/// that is too long. ttrpc says INVALID_ARGUMENT, which a peer that tries one version after the other takes for a
/// refusal. `None`: this is another message. ttrpc writes a short one in one piece.
fn with_gos_code(message: &[u8]) -> Option<Vec<u8>> {
    let (header, payload) = message.split_at_checked(HEADER)?;
    let length = u32::from_be_bytes(header[..4].try_into().ok()?);
    if header[8] != RESPONSE || usize::try_from(length) != Ok(payload.len()) {
        return None;
    }
    let mut answer = Response::parse_from_bytes(payload).ok()?;
    let status = answer.status.as_mut()?;
    let unknown = status.message.ends_with(" service does not exist")
        && status.code.value() == Code::InvalidArgument as i32;
    let code = if unknown {
        Code::Unimplemented
    } else if is_too_long(status) {
        Code::ResourceExhausted
    } else {
        return None;
    };
    status.code = EnumOrUnknown::from_i32(code as i32);
    let payload = answer.write_to_bytes().ok()?;
    let length = u32::try_from(payload.len()).ok()?.to_be_bytes();
    Some([&length, &header[4..], &payload].concat())
}

impl AsyncWrite for Gated {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let conn = Pin::new(&mut self.conn);
        let written = match with_gos_code(buf) {
            // Shorter than a frame, which is taken whole or not at all.
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

    #[test]
    fn only_answers_about_an_unknown_service_or_a_long_message_get_another_code() {
        let message = |code: Code, text: &str| {
            let status = ttrpc::proto::Status {
                code: EnumOrUnknown::from_i32(code as i32),
                message: text.to_owned(),
                ..Default::default()
            };
            let answer = Response {
                status: Some(status).into(),
                ..Response::default()
            };
            let payload = answer.write_to_bytes().unwrap();
            let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
            [&length[..], &[0, 0, 0, 5, RESPONSE, 0], &payload].concat()
        };
        let unknown = message(Code::InvalidArgument, "a.b.C service does not exist");
        let changed = with_gos_code(&unknown).unwrap();
        assert_eq!(
            changed,
            message(Code::Unimplemented, "a.b.C service does not exist")
        );
        assert_eq!(with_gos_code(&changed), None);
        let long = "message length 5000000 exceed maximum message size of 4194304";
        assert_eq!(
            with_gos_code(&message(Code::InvalidArgument, long)),
            Some(message(Code::ResourceExhausted, long))
        );
        assert_eq!(
            with_gos_code(&message(Code::InvalidArgument, "no name")),
            None
        );
        assert_eq!(with_gos_code(&unknown[..20]), None);
        assert_eq!(with_gos_code(b""), None);
    }

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let answer: Result<(), _> = without_panic(async { panic!("on purpose") }).await;
        assert!(answer.unwrap_err().message.contains("panicked"));
    }
}
