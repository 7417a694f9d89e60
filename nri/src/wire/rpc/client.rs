//! Calls the peer's services.
//!
//! ```text
//!   call ── with the id that its place on the wire gives it ──► MuxSender
//!     ▲
//!     └────── by id ────── Waiting ◄────── reader ◄────── MuxConn
//! ```
//! Between a plugin's answer and who waits for it there is one task, the reader: a wake-up of another thread costs as
//! much as the rest of a call.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, copy, sink},
    sync::{Semaphore, oneshot},
    task::AbortHandle,
    time::{Instant, timeout_at},
};

use super::{
    envelope::{
        DATA, HEADER, KeyValue, REQUEST, RESPONSE, Request, Response, header, parse_header,
    },
    frame::MAX_CALLS,
    status::{CallError, Code, MAX_MESSAGE, Status, one_line},
};
use crate::wire::mux::{MuxConn, MuxSender};

/// Gives what a call carries beside its request, by the name of its method.
pub(crate) type Metadata = Arc<dyn Fn(&str) -> Vec<(String, String)> + Send + Sync>;

/// Calls the peer's services. With the last one dropped its connection is forgotten.
#[derive(Clone)]
pub(crate) struct Client {
    sender: MuxSender,
    waiting: Arc<Waiting>,
    open: Arc<Semaphore>,
    _reader: Arc<Reader>,
    metadata: Option<Metadata>,
}

impl Client {
    /// Must be called inside a tokio runtime.
    pub(crate) fn new(conn: MuxConn, metadata: Option<Metadata>) -> Self {
        let waiting = Arc::<Waiting>::default();
        Self {
            sender: conn.sender(),
            _reader: Arc::new(Reader::start(conn, waiting.clone())),
            waiting,
            open: Arc::new(Semaphore::new(MAX_CALLS)),
            metadata,
        }
    }

    /// Calls `service.method` and waits at most `limit`. The peer is told so: after that it may stop
    /// working on the answer.
    pub(crate) async fn call(
        &self,
        service: &str,
        method: &str,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let deadline = Instant::now() + limit;
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload,
            timeout_nano: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
            metadata: self.metadata(method),
        };
        let body = timeout_at(deadline, self.ask(request)).await;
        let body = body.map_err(|_| CallError::TimedOut(limit))??;
        let answer = Response::decode(body.as_slice());
        let answer = answer.map_err(|e| CallError::BadReply(e.to_string()))?;
        match answer.status {
            None => Ok(answer.payload),
            Some(status) if status.code == 0 => Ok(answer.payload),
            Some(status) if status.code == Code::DeadlineExceeded as i32 => {
                Err(CallError::TimedOut(limit))
            }
            Some(status) => Err(CallError::Status(Status {
                code: status.code,
                message: one_line(&status.message),
            })),
        }
    }

    fn metadata(&self, method: &str) -> Vec<Vec<u8>> {
        let pairs = self.metadata.as_ref().map(|metadata| metadata(method));
        let pairs = pairs.into_iter().flatten();
        pairs
            .map(|(key, value)| KeyValue { key, value }.encode_to_vec())
            .collect()
    }

    /// The body of the answer.
    async fn ask(&self, request: Request) -> Result<Vec<u8>, CallError> {
        let lost = |e: &dyn std::fmt::Display| CallError::Lost(e.to_string());
        let length = request.encoded_len();
        if length > MAX_MESSAGE {
            return Err(CallError::TooLong { len: length });
        }
        let _open = self.open.acquire().await.map_err(|e| lost(&e))?;
        let mut message = Vec::with_capacity(HEADER + length);
        message.extend(header(length, 0, REQUEST));
        request.encode_raw(&mut message);
        // While a plugin thinks, nothing of it is kept.
        drop(request);
        let call = Call {
            id: AtomicU32::new(0),
            waiting: &self.waiting,
        };
        let (tell, told) = oneshot::channel();
        let in_its_place = || {
            let id = self.waiting.add(tell)?;
            call.id.store(id, Ordering::Relaxed);
            message[..HEADER].copy_from_slice(&header(length, id, REQUEST));
            Ok(message)
        };
        self.sender.send(in_its_place).await.map_err(|e| lost(&e))?;
        // Told nothing: the reader has ended.
        told.await
            .unwrap_or_else(|_| Err(lost(&self.sender.why_closed())))
    }
}

/// A call on its way. Dropped: nobody waits for its answer.
struct Call<'a> {
    /// 0 until it is sent.
    id: AtomicU32,
    waiting: &'a Waiting,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let id = self.id.load(Ordering::Relaxed);
        self.waiting.0.lock().calls.remove(&id);
    }
}

type Tell = oneshot::Sender<Result<Vec<u8>, CallError>>;

/// The calls that wait for their answer.
#[derive(Default)]
struct Waiting(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    /// The id of the last one sent.
    last: Option<u32>,
    calls: HashMap<u32, Tell>,
    /// No answer comes any more.
    ended: bool,
}

impl Waiting {
    /// Gives a call its id: odd, and higher than those before (NRI-132).
    fn add(&self, tell: Tell) -> io::Result<u32> {
        let mut calls = self.0.lock();
        let id = match calls.last {
            None => Some(1),
            Some(last) => last.checked_add(2),
        };
        let id = id.ok_or_else(|| io::Error::other("every id of a call has been used"))?;
        calls.last = Some(id);
        if !calls.ended {
            calls.calls.insert(id, tell);
        }
        Ok(id)
    }

    /// Ignores what nobody waits for: an answer that is late, for one (NRI-134).
    fn tell(&self, id: u32, answer: Result<Vec<u8>, CallError>) {
        let call = self.0.lock().calls.remove(&id);
        if let Some(call) = call {
            let _nobody_waits_any_more = call.send(answer);
        }
    }

    fn end(&self) {
        let mut calls = self.0.lock();
        calls.ended = true;
        calls.calls.clear();
    }
}

/// Its task ends with it.
struct Reader(AbortHandle);

impl Reader {
    fn start(mut conn: MuxConn, waiting: Arc<Waiting>) -> Self {
        let read = async move {
            // Why, the trunk knows.
            while read_message(&mut conn, &waiting).await.is_ok() {}
            waiting.end();
        };
        Self(tokio::spawn(read).abort_handle())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads one message. What is neither an answer nor in the place of one is ignored (NRI-136).
async fn read_message(conn: &mut MuxConn, waiting: &Waiting) -> io::Result<()> {
    /// Nothing is allocated for a length that is only claimed.
    const AT_ONCE: usize = 64 << 10;
    let mut header = [0; HEADER];
    conn.read_exact(&mut header).await?;
    let (length, id, kind) = parse_header(header);
    let mut rest = conn.take(length as u64);
    let mut body = Vec::new();
    if length > MAX_MESSAGE {
        copy(&mut rest, &mut sink()).await?;
    } else {
        body.reserve(length.min(AT_ONCE));
        rest.read_to_end(&mut body).await?;
    }
    if rest.limit() > 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match kind {
        RESPONSE if length > MAX_MESSAGE => {
            let text = format!("the answer of {length} bytes exceeds the limit of {MAX_MESSAGE}");
            let status = Status::new(Code::ResourceExhausted, text);
            waiting.tell(id, Err(CallError::Status(status)));
        }
        RESPONSE => waiting.tell(id, Ok(body)),
        DATA => {
            let why = "it came in a data frame".to_owned();
            waiting.tell(id, Err(CallError::BadReply(why)));
        }
        _ => {}
    }
    Ok(())
}
