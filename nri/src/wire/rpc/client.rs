//! Calls the peer's services.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Semaphore,
    task::coop::unconstrained,
    time::{Instant, timeout_at},
};
use ttrpc::{
    asynchronous::{Client as TtrpcClient, transport},
    proto::{KeyValue, Request, Response},
};

use super::{
    frame::{DATA, HEADER, MAX_CALLS, is_too_long},
    status::{CallError, Code, ENVELOPE, MAX_MESSAGE, Status, one_line},
};
use crate::wire::mux::MuxConn;

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

    /// Calls `service.method` and waits at most `limit`. The peer is told so: after that it may stop
    /// working on the answer.
    pub(crate) async fn call(
        &self,
        service: &str,
        method: &str,
        payload: Vec<u8>,
        limit: Duration,
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
            timeout_nano: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
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
