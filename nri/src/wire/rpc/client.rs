//! Calls the peer's service.
//!
//! ```text
//!   call ── with the id that its place on the wire gives it ──► MuxSender
//!     ▲
//!     └────── by id ────── Waiting ◄────── reader ◄────── MuxConn
//! ```
//! Only one task, the reader, is between a plugin's answer and its caller: waking another thread
//! costs as much as the rest of a call.

use std::{
    collections::BTreeMap,
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
    sync::{Notify, Semaphore, oneshot},
    task::AbortHandle,
    time::{Instant, timeout_at},
};

use super::{
    envelope::{
        DATA, HEADER, KeyValue, REQUEST, RESPONSE, Request, Response, header, parse_header,
    },
    status::{CallError, Code, MAX_CALLS, MAX_MESSAGE, Status, one_line},
};
use crate::{
    rt,
    wire::mux::{MuxConn, MuxSender},
};

/// Special attributes of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extra {
    /// Bytes by which its message must stay below the limit.
    pub(crate) room: usize,
    /// Its metadata.
    pub(crate) metadata: Vec<(String, String)>,
    /// Time for which the peer may process it, even if the caller waits less.
    pub(crate) busy: Duration,
}

/// Calls the peer's service. Dropping the last one drops its connection.
#[derive(Clone)]
pub(crate) struct Client {
    sender: MuxSender,
    waiting: Arc<Waiting>,
    open: Arc<Semaphore>,
    _reader: Arc<Reader>,
    service: &'static str,
}

impl Client {
    /// Must be called inside a tokio runtime.
    pub(crate) fn new(conn: MuxConn, service: &'static str) -> Self {
        let waiting = Arc::<Waiting>::default();
        Self {
            sender: conn.sender(),
            _reader: Arc::new(Reader::start(conn, waiting.clone())),
            waiting,
            open: Arc::new(Semaphore::new(MAX_CALLS)),
            service,
        }
    }

    /// Calls a method and waits at most `limit`. The peer receives the limit and may stop
    /// working on the answer after it.
    pub(crate) async fn call(
        &self,
        method: &str,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, CallError> {
        self.call_with(method, payload, limit, Extra::default())
            .await
    }

    /// As [`Client::call`], with special attributes.
    pub(crate) async fn call_with(
        &self,
        method: &str,
        payload: Vec<u8>,
        limit: Duration,
        extra: Extra,
    ) -> Result<Vec<u8>, CallError> {
        let deadline = Instant::now() + limit;
        let pairs = extra.metadata.into_iter();
        let pairs = pairs.map(|(key, value)| KeyValue { key, value }.encode_to_vec());
        let request = Request {
            service: self.service.to_owned(),
            method: method.to_owned(),
            payload,
            timeout_nano: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
            metadata: pairs.collect(),
        };
        let longest = MAX_MESSAGE - extra.room;
        let busy_until = deadline.max(Instant::now() + extra.busy);
        let body = timeout_at(deadline, self.ask(request, longest, busy_until)).await;
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

    /// Waits until the peer owes no answer, not even one whose caller has given up.
    pub(crate) async fn settled(&self) {
        loop {
            let settled = self.waiting.settled.notified();
            if !self.waiting.is_owed() {
                return;
            }
            settled.await;
        }
    }

    /// The body of the answer.
    async fn ask(
        &self,
        request: Request,
        longest: usize,
        busy_until: Instant,
    ) -> Result<Vec<u8>, CallError> {
        let lost = |e: &dyn std::fmt::Display| CallError::Lost(e.to_string());
        let length = request.encoded_len();
        if length > longest {
            return Err(CallError::TooLong {
                len: length,
                limit: longest,
            });
        }
        let _open = self.open.acquire().await.map_err(|e| lost(&e))?;
        let mut message = Vec::with_capacity(HEADER + length);
        message.extend(header(length, 0, REQUEST));
        request.encode_raw(&mut message);
        // The request is not kept while the plugin works.
        drop(request);
        let call = Call {
            id: AtomicU32::new(0),
            busy_until,
            waiting: &self.waiting,
        };
        let (reply, notified) = oneshot::channel();
        let in_its_place = || {
            let id = self.waiting.add(reply)?;
            call.id.store(id, Ordering::Relaxed);
            message[..HEADER].copy_from_slice(&header(length, id, REQUEST));
            Ok(message)
        };
        self.sender.send(in_its_place).await.map_err(|e| lost(&e))?;
        // A closed channel: the reader has ended.
        notified
            .await
            .unwrap_or_else(|_| Err(lost(&self.sender.why_closed())))
    }
}

/// A running call. Dropping it gives up its answer.
struct Call<'a> {
    /// 0 until it is sent.
    id: AtomicU32,
    busy_until: Instant,
    waiting: &'a Waiting,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let id = self.id.load(Ordering::Relaxed);
        self.waiting.leave(id, self.busy_until);
    }
}

type Reply = oneshot::Sender<Result<Vec<u8>, CallError>>;

/// The receiver of an answer.
enum Asker {
    Caller(Reply),
    /// No receiver; the peer may work on it until then.
    GivenUp(Instant),
}

/// The calls without an answer yet.
#[derive(Default)]
struct Waiting {
    calls: Mutex<Calls>,
    /// Notified when none are left, if awaited.
    settled: Notify,
}

#[derive(Default)]
struct Calls {
    /// The id of the last call sent.
    last: Option<u32>,
    calls: BTreeMap<u32, Asker>,
    /// No further answers will arrive.
    ended: bool,
    /// A task waits until none are left.
    awaited: bool,
}

impl Calls {
    /// Abandoned calls are owed until their time is over.
    fn forget_late(&mut self) {
        let now = Instant::now();
        let late = |asker: &Asker| matches!(asker, Asker::GivenUp(until) if *until <= now);
        self.calls.retain(|_, asker| !late(asker));
    }
}

impl Waiting {
    /// Gives a call its id: odd, and higher than those before (NRI-132).
    fn add(&self, reply: Reply) -> io::Result<u32> {
        let mut calls = self.calls.lock();
        let id = match calls.last {
            None => Some(1),
            Some(last) => last.checked_add(2),
        };
        let id = id.ok_or_else(|| io::Error::other("every id of a call has been used"))?;
        calls.last = Some(id);
        if !calls.ended {
            calls.calls.insert(id, Asker::Caller(reply));
        }
        Ok(id)
    }

    /// Ignores answers without a receiver, such as late ones (NRI-134).
    fn reply(&self, id: u32, answer: Result<Vec<u8>, CallError>) {
        let mut calls = self.calls.lock();
        let asker = calls.calls.remove(&id);
        self.reply_if_settled(&mut calls);
        drop(calls);
        if let Some(Asker::Caller(call)) = asker {
            // The caller may have given up.
            let _ = call.send(answer);
        }
    }

    fn reply_if_settled(&self, calls: &mut Calls) {
        if calls.calls.is_empty() && std::mem::take(&mut calls.awaited) {
            self.settled.notify_waiters();
        }
    }

    /// The caller stops waiting: its timeout has expired, or it has given up before.
    fn leave(&self, id: u32, busy_until: Instant) {
        let mut calls = self.calls.lock();
        if let Some(asker) = calls.calls.get_mut(&id) {
            *asker = Asker::GivenUp(busy_until);
            calls.forget_late();
            self.reply_if_settled(&mut calls);
        }
    }

    /// Whether an answer is owed; if so, `settled` is notified when none is. The expiry of a call
    /// wakes no task; waiters have a deadline.
    fn is_owed(&self) -> bool {
        let mut calls = self.calls.lock();
        calls.forget_late();
        self.reply_if_settled(&mut calls);
        calls.awaited = !calls.calls.is_empty();
        calls.awaited
    }

    fn end(&self) {
        let mut calls = self.calls.lock();
        calls.ended = true;
        calls.calls.clear();
        self.settled.notify_waiters();
    }
}

/// Dropping it aborts its task.
struct Reader(AbortHandle);

impl Reader {
    fn start(mut conn: MuxConn, waiting: Arc<Waiting>) -> Self {
        let read = async move {
            // The trunk reports the reason.
            while read_message(&mut conn, &waiting).await.is_ok() {}
            waiting.end();
        };
        Self(rt::spawn(read).abort_handle())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads one message. A message that is not an answer, nor in the place of one, is ignored
/// (NRI-136).
async fn read_message(conn: &mut MuxConn, waiting: &Waiting) -> io::Result<()> {
    /// Bounds the allocation for a length that is only claimed.
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
            waiting.reply(id, Err(CallError::Status(status)));
        }
        RESPONSE => waiting.reply(id, Ok(body)),
        DATA => {
            let why = "it came in a data frame".to_owned();
            waiting.reply(id, Err(CallError::BadReply(why)));
        }
        _ => {}
    }
    Ok(())
}
