//! The multiplexer: several logical connections over one socket, the *trunk* (NRI-106…117).
//!
//! ```text
//!   frame = connection id (u32 BE) | length (u32 BE) | payload
//!
//!   MuxConn 1 ─┐  poll_write: one frame each, straight to the socket,   ┌─► MuxConn 1 queue
//!   MuxSender ─┴► what does not fit waits for the writer task    reader ┴─► MuxConn 2 queue
//! ```
//! Of one logical connection, a `MuxConn` is both directions; a `MuxSender` writes whole messages to it from any task.
//!
//! A frame is a unit for the sender only: a Go reader needs the start of each message in a frame of
//! at most 4096 bytes (NRI-110), which ttrpc's writes give us when each write is one frame. The
//! receiver sees a stream of bytes with arbitrary cuts (NRI-111), so pieces are handed on as they
//! arrive and nothing is allocated for a length that is only claimed.
//!
//! What a server answers is packed into few frames (`replies.rs`): a Go peer has a queue of 256.
//!
//! Nobody waits for a slow logical connection: one whose queue exceeds its budget closes the trunk
//! (NRI-108). Nobody waits for a peer that does not read: the writer task closes the trunk when
//! nothing moved for the write timeout (NRI-115). The first error is the one that is reported.

use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};

use self::{error::INBOUND_BUDGET, frame::HEADER, replies::Replies};
pub(crate) use self::{
    error::{MAX_FRAME, MuxError},
    frame::{FrameReader, SHORT_FRAME, header},
};

mod error;
mod frame;
mod replies;

/// Bytes that may wait for the socket before writers are made to wait.
const OUTBOUND_BUDGET: usize = 1 << 20;
const READ_BUFFER: usize = 16 << 10;

/// The plugin's service: the runtime calls, the plugin serves.
pub(crate) const PLUGIN_SERVICE: u32 = 1;
/// The runtime's service: the plugin calls, the runtime serves.
pub(crate) const RUNTIME_SERVICE: u32 = 2;

/// What arrived for one logical connection and was not read yet.
#[derive(Debug, Default)]
struct Inbound {
    bytes: VecDeque<u8>,
    reader: Option<Waker>,
}

/// What the socket has not taken yet, and who waits for room.
#[derive(Debug, Default)]
struct Outbound {
    bytes: VecDeque<u8>,
    writers: Vec<Waker>,
    /// Of the connection on which we answer, if any.
    replies: Option<Replies>,
}

/// Sees the bytes of a trunk as they come and go. Called in the way of every byte: it must not wait.
pub(crate) trait Watch: std::fmt::Debug + Send + Sync {
    fn came(&self, bytes: &[u8]);
    /// Before they are sent, so that no answer to them is seen first.
    fn goes(&self, bytes: &[u8]);
    fn ended(&self, reason: &MuxError);
}

/// Makes one for each trunk.
pub(crate) type Watches = Arc<dyn Fn() -> Box<dyn Watch> + Send + Sync>;

#[derive(Debug)]
struct Trunk {
    socket: UnixStream,
    watch: Option<Box<dyn Watch>>,
    inbound: Mutex<BTreeMap<u32, Inbound>>,
    outbound: Mutex<Outbound>,
    more_to_write: Notify,
    /// `Some` once closed, with the first reason.
    closed: watch::Sender<Option<MuxError>>,
    write_timeout: Duration,
}

/// One end of a trunk. Dropping it closes the trunk.
#[derive(Debug)]
pub(crate) struct Mux {
    trunk: Arc<Trunk>,
}

/// A logical connection: a stream of bytes each way.
#[derive(Debug)]
pub(crate) struct MuxConn {
    id: u32,
    trunk: Arc<Trunk>,
}

/// Where a logical connection's messages are sent from.
#[derive(Debug, Clone)]
pub(crate) struct MuxSender {
    id: u32,
    trunk: Arc<Trunk>,
}

impl Mux {
    /// Wraps a socket. Nothing is read before [`Mux::start`], so that whoever serves a connection
    /// can open it first (NRI-117).
    #[cfg(any(test, feature = "stub", feature = "fuzzing"))]
    pub(crate) fn new(socket: UnixStream, write_timeout: Duration) -> Self {
        Self::watched(socket, write_timeout, None)
    }

    /// As [`Mux::new`], with someone who sees every byte.
    pub(crate) fn watched(
        socket: UnixStream,
        write_timeout: Duration,
        watch: Option<Box<dyn Watch>>,
    ) -> Self {
        let trunk = Trunk {
            socket,
            watch,
            inbound: Mutex::default(),
            outbound: Mutex::default(),
            more_to_write: Notify::new(),
            closed: watch::Sender::new(None),
            write_timeout,
        };
        Self {
            trunk: Arc::new(trunk),
        }
    }

    /// Opens the logical connection `id`. Frames for connections nobody opened are dropped.
    pub(crate) fn open(&self, id: u32) -> MuxConn {
        self.trunk.inbound.lock().entry(id).or_default();
        MuxConn {
            id,
            trunk: self.trunk.clone(),
        }
    }

    /// Opens the logical connection `id` to answer calls on it. One of a trunk.
    pub(crate) fn open_for_replies(&self, id: u32) -> MuxConn {
        self.trunk.outbound.lock().replies = Some(Replies::new(id, Instant::now()));
        self.open(id)
    }

    /// Begins to read and write.
    pub(crate) fn start(&self) {
        tokio::spawn(self.trunk.clone().read());
        tokio::spawn(self.trunk.clone().write());
    }

    /// Resolves when the trunk is closed, with the reason.
    pub(crate) fn closed(&self) -> impl Future<Output = MuxError> + Send + 'static {
        let mut closed = self.trunk.closed.subscribe();
        async move {
            match closed.wait_for(Option::is_some).await {
                Ok(reason) => reason.clone().unwrap_or(MuxError::Closed),
                Err(_) => MuxError::Closed,
            }
        }
    }

    /// Closes the trunk for this reason, unless it is closed already.
    pub(crate) fn close(&self, reason: MuxError) {
        self.trunk.close(reason);
    }
}

impl Drop for Mux {
    fn drop(&mut self) {
        self.trunk.close(MuxError::Closed);
    }
}

impl Trunk {
    fn close(&self, reason: MuxError) {
        let first = self.closed.send_if_modified(|closed| {
            let open = closed.is_none();
            closed.get_or_insert_with(|| reason.clone());
            open
        });
        if !first {
            return;
        }
        if let Some(watch) = &self.watch {
            watch.ended(&reason);
        }
        // The reader task ends by the end of file this causes; the peer learns of it too.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.more_to_write.notify_one();
        for conn in self.inbound.lock().values_mut() {
            conn.reader.take().into_iter().for_each(Waker::wake);
        }
        self.outbound.lock().writers.drain(..).for_each(Waker::wake);
    }

    fn reason(&self) -> Option<MuxError> {
        self.closed.borrow().clone()
    }

    async fn read(self: Arc<Self>) {
        let mut frames = FrameReader::default();
        let mut buffer = vec![0; READ_BUFFER];
        let reason = loop {
            if let Err(e) = self.socket.readable().await {
                break MuxError::Io(e.to_string());
            }
            match self.socket.try_read(&mut buffer) {
                Ok(0) if frames.at_boundary() => break MuxError::Eof,
                Ok(0) => break MuxError::Truncated,
                Ok(n) => {
                    if let Some(watch) = &self.watch {
                        watch.came(&buffer[..n]);
                    }
                    if let Err(e) = frames.push(&buffer[..n], |id, piece| self.deliver(id, piece)) {
                        break e;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => break MuxError::Io(e.to_string()),
            }
        };
        self.close(reason);
    }

    fn deliver(&self, id: u32, piece: &[u8]) -> Result<(), MuxError> {
        let waker = {
            let mut inbound = self.inbound.lock();
            let Some(conn) = inbound.get_mut(&id) else {
                return Ok(());
            };
            if conn.bytes.len() + piece.len() > INBOUND_BUDGET {
                return Err(MuxError::Overflow(id));
            }
            conn.bytes.extend(piece);
            conn.reader.take()
        };
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Writes what the socket did not take at once, and answers that were held.
    async fn write(self: Arc<Self>) {
        loop {
            let due = self.outbound.lock().replies.as_ref().and_then(Replies::due);
            tokio::select! {
                () = self.more_to_write.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if let Err(e) = self.release() {
                        return self.close(MuxError::Io(e.to_string()));
                    }
                }
            }
            loop {
                if self.reason().is_some() {
                    return;
                }
                if self.outbound.lock().bytes.is_empty() {
                    break;
                }
                match tokio::time::timeout(self.write_timeout, self.socket.writable()).await {
                    Err(_) => return self.close(MuxError::Stalled(self.write_timeout)),
                    Ok(Err(e)) => return self.close(MuxError::Io(e.to_string())),
                    Ok(Ok(())) => {}
                }
                if let Err(e) = self.drain() {
                    return self.close(MuxError::Io(e.to_string()));
                }
            }
        }
    }

    /// Sends an answer, or holds it. False: the writer must wait.
    fn reply(&self, out: &mut Outbound, bytes: &[u8]) -> io::Result<bool> {
        let Some(mut replies) = out.replies.take() else {
            return Ok(false);
        };
        let id = replies.id;
        let taken = replies.put(bytes, Instant::now(), |frame| self.send(out, id, frame));
        if replies.due().is_some() {
            self.more_to_write.notify_one();
        }
        out.replies = Some(replies);
        taken
    }

    /// What goes out, to add to it: once there is room, and only while the trunk is open.
    fn poll_turn(&self, cx: &Context<'_>) -> Poll<io::Result<MutexGuard<'_, Outbound>>> {
        let mut out = self.outbound.lock();
        if let Some(reason) = self.reason() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, reason)));
        }
        if out.bytes.len() >= OUTBOUND_BUDGET {
            out.writers.push(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(out))
    }

    /// Sends the answers whose time has come.
    fn release(&self) -> io::Result<()> {
        let mut out = self.outbound.lock();
        let Some(mut replies) = out.replies.take() else {
            return Ok(());
        };
        let id = replies.id;
        let called = replies.release(Instant::now(), |frame| self.send(&mut out, id, frame));
        out.replies = Some(replies);
        if called? {
            out.writers.drain(..).for_each(Waker::wake);
        }
        Ok(())
    }

    fn drain(&self) -> io::Result<()> {
        let mut out = self.outbound.lock();
        while !out.bytes.is_empty() {
            match self.socket.try_write(out.bytes.as_slices().0) {
                Ok(n) => drop(out.bytes.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        if out.bytes.is_empty() && out.bytes.capacity() > OUTBOUND_BUDGET {
            out.bytes = VecDeque::new();
        }
        if out.bytes.len() < OUTBOUND_BUDGET {
            out.writers.drain(..).for_each(Waker::wake);
        }
        Ok(())
    }

    /// Sends one frame, or as much of it as the socket takes and queues the rest.
    fn send(&self, out: &mut Outbound, id: u32, payload: &[u8]) -> io::Result<()> {
        let header = header(id, payload.len());
        if let Some(watch) = &self.watch {
            watch.goes(&header);
            watch.goes(payload);
        }
        let mut sent = 0;
        if out.bytes.is_empty() {
            let parts = [io::IoSlice::new(&header), io::IoSlice::new(payload)];
            match self.socket.try_write_vectored(&parts) {
                Ok(n) => sent = n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        out.bytes.extend(&header[sent.min(HEADER)..]);
        out.bytes.extend(&payload[sent.saturating_sub(HEADER)..]);
        if !out.bytes.is_empty() {
            self.more_to_write.notify_one();
        }
        Ok(())
    }
}

impl MuxConn {
    pub(crate) fn sender(&self) -> MuxSender {
        MuxSender {
            id: self.id,
            trunk: self.trunk.clone(),
        }
    }
}

impl MuxSender {
    /// Sends one message, whole or not at all. `message` makes it when its turn has come: messages are made in the order of
    /// the wire.
    pub(crate) async fn send(
        &self,
        message: impl FnOnce() -> io::Result<Vec<u8>>,
    ) -> io::Result<()> {
        let mut message = Some(message);
        poll_fn(|cx| {
            let mut out = ready!(self.trunk.poll_turn(cx))?;
            let Some(message) = message.take() else {
                return Poll::Ready(Ok(()));
            };
            let message = message()?;
            let (start, rest) = message.split_at(message.len().min(SHORT_FRAME));
            let mut sent = self.trunk.send(&mut out, self.id, start);
            if sent.is_ok() && !rest.is_empty() {
                sent = self.trunk.send(&mut out, self.id, rest);
            }
            drop(out);
            if let Err(e) = &sent {
                self.trunk.close(MuxError::Io(e.to_string()));
            }
            Poll::Ready(sent)
        })
        .await
    }

    /// Of a trunk that is closed.
    pub(crate) fn why_closed(&self) -> MuxError {
        self.trunk.reason().unwrap_or(MuxError::Closed)
    }
}

impl AsyncRead for MuxConn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inbound = self.trunk.inbound.lock();
        let Some(conn) = inbound.get_mut(&self.id) else {
            return Poll::Ready(Ok(()));
        };
        if conn.bytes.is_empty() {
            return match self.trunk.reason() {
                None => {
                    conn.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
                Some(MuxError::Eof | MuxError::Closed) => Poll::Ready(Ok(())),
                Some(reason) => Poll::Ready(Err(io::Error::other(reason))),
            };
        }
        let (front, _) = conn.bytes.as_slices();
        let n = front.len().min(buf.remaining());
        buf.put_slice(&front[..n]);
        conn.bytes.drain(..n);
        if conn.bytes.is_empty() && conn.bytes.capacity() > READ_BUFFER * 4 {
            conn.bytes = VecDeque::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MuxConn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut out = ready!(self.trunk.poll_turn(cx))?;
        let frame = &buf[..buf.len().min(MAX_FRAME)];
        let sent = if out.replies.as_ref().is_some_and(|r| r.id == self.id) {
            self.trunk.reply(&mut out, frame)
        } else {
            self.trunk.send(&mut out, self.id, frame).map(|()| true)
        };
        if let Ok(false) = sent {
            out.writers.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(out);
        if let Err(e) = sent {
            self.trunk.close(MuxError::Io(e.to_string()));
            return Poll::Ready(Err(e));
        }
        Poll::Ready(Ok(frame.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for MuxConn {
    /// Forgets the connection locally (NRI-112); what still arrives for it is dropped.
    fn drop(&mut self) {
        self.trunk.inbound.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests;
