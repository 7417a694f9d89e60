//! The two tasks that read and write the socket of a multiplexer, and their buffers: received bytes
//! that nobody has read, and bytes that wait for the socket.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};

use super::{
    error::MuxError,
    frame::{FrameReader, HEADER, header},
    limits::{INBOUND_BUDGET, OUTBOUND_BUDGET},
    replies::Replies,
    socket::Socket,
};

pub(super) const READ_BUFFER: usize = 16 << 10;

/// Received and unread bytes of one logical connection.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    pub(super) bytes: VecDeque<u8>,
    pub(super) reader: Option<Waker>,
}

/// Bytes that wait for the socket, and the writers that wait for room.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    bytes: VecDeque<u8>,
    pub(super) writers: Vec<Waker>,
    /// Of the connection for our answers, if any.
    pub(super) replies: Option<Replies>,
}

/// Observes the bytes of one connection, in the format of [`frame`](crate::wire::frame). It is
/// called for every byte before the connection continues, and must not wait.
pub trait Watch: std::fmt::Debug + Send + Sync {
    /// The plugin sent these bytes.
    fn came(&self, bytes: &[u8]);
    /// These bytes are about to be sent, so that no answer to them is seen first.
    fn goes(&self, bytes: &[u8]);
    /// The connection has ended: whether the runtime closed it, and the reason.
    fn ended(&self, by_us: bool, why: &str);
}

/// Creates one for each trunk.
pub(crate) type Watches = Arc<dyn Fn() -> Box<dyn Watch> + Send + Sync>;

#[derive(Debug)]
pub(super) struct Trunk {
    socket: Socket,
    watch: Option<Box<dyn Watch>>,
    pub(super) inbound: Mutex<BTreeMap<u32, Inbound>>,
    pub(super) outbound: Mutex<Outbound>,
    more_to_write: Notify,
    /// `Some` once closed, with the first reason.
    pub(super) closed: watch::Sender<Option<MuxError>>,
    write_timeout: Duration,
}

impl Trunk {
    pub(super) fn new(
        socket: Socket,
        write_timeout: Duration,
        watch: Option<Box<dyn Watch>>,
    ) -> Self {
        Self {
            socket,
            watch,
            inbound: Mutex::default(),
            outbound: Mutex::default(),
            more_to_write: Notify::new(),
            closed: watch::Sender::new(None),
            write_timeout,
        }
    }

    pub(super) fn close(&self, reason: MuxError) {
        let first = self.closed.send_if_modified(|closed| {
            let open = closed.is_none();
            if open {
                // Before any waiter is woken: a waiter for the end may end the recording.
                if let Some(watch) = &self.watch {
                    watch.ended(reason == MuxError::Closed, &reason.to_string());
                }
                *closed = Some(reason);
            }
            open
        });
        if !first {
            return;
        }
        // The reader task ends by the resulting end of file; the peer is notified too.
        self.socket.shutdown();
        self.more_to_write.notify_one();
        for conn in self.inbound.lock().values_mut() {
            conn.reader.take().into_iter().for_each(Waker::wake);
        }
        self.outbound.lock().writers.drain(..).for_each(Waker::wake);
    }

    pub(super) fn reason(&self) -> Option<MuxError> {
        self.closed.borrow().clone()
    }

    pub(super) async fn read(self: Arc<Self>) {
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

    /// Writes queued bytes and buffered answers.
    pub(super) async fn write(self: Arc<Self>) {
        loop {
            let due = self.outbound.lock().replies.as_ref().and_then(Replies::due);
            tokio::select! {
                biased;
                // First: a released answer is not due again, while more output is possible at any
                // call.
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if let Err(e) = self.release() {
                        return self.close(MuxError::Io(e.to_string()));
                    }
                }
                () = self.more_to_write.notified() => {}
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

    /// Sends an answer, or buffers it. False: the writer must wait.
    pub(super) fn reply(&self, out: &mut Outbound, bytes: &[u8]) -> io::Result<bool> {
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

    /// The output queue, once it has room, and only while the trunk is open.
    pub(super) fn poll_turn(&self, cx: &Context<'_>) -> Poll<io::Result<MutexGuard<'_, Outbound>>> {
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

    /// Sends the answers that are due.
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
            match self
                .socket
                .try_write_vectored(&[io::IoSlice::new(out.bytes.as_slices().0)])
            {
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

    /// Sends one frame; the part that the socket does not take is queued.
    pub(super) fn send(&self, out: &mut Outbound, id: u32, payload: &[u8]) -> io::Result<()> {
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
