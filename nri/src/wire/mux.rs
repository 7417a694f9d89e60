//! The multiplexer: several logical connections over one socket, the *trunk* (NRI-106…117).
//!
//! ```text
//!   frame = connection id (u32 BE) | length (u32 BE) | payload
//!
//!   MuxConn 1 ─┐  poll_write: one frame each, straight to the socket,   ┌─► MuxConn 1 queue
//!   MuxSender ─┴► the remainder waits for the writer task        reader ┴─► MuxConn 2 queue
//! ```
//! A `MuxConn` is both directions of a logical connection; a `MuxSender` writes messages from any
//! task.
//!
//! A frame is a unit for the sender only: a Go reader needs the start of each message in a frame of
//! at most 4096 bytes (NRI-110); ttrpc's writes satisfy that when each write is one frame. The
//! receiver sees a stream of bytes with arbitrary cuts (NRI-111), so pieces are passed on as they
//! arrive and nothing is allocated for a length that is only claimed.
//!
//! A server's answers are packed into few frames (`replies.rs`): a Go peer has a queue of 256.
//! `trunk.rs` reads and writes the socket.
//!
//! A slow logical connection never delays others: one whose queue exceeds its budget closes the
//! trunk (NRI-108). A peer that does not read never blocks: the writer task closes the trunk when
//! nothing moved for the write timeout (NRI-115). The first error is the one that is reported.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::rt;

pub use self::{
    error::MuxError,
    frame::{FrameReader, header},
    limits::MAX_FRAME,
    trunk::Watch,
};
pub(crate) use self::{limits::SHORT_FRAME, socket::Socket, trunk::Watches};
use self::{
    replies::Replies,
    trunk::{READ_BUFFER, Trunk},
};

mod error;
mod frame;
mod limits;
mod replies;
mod socket;
mod trunk;

/// The plugin's service: the runtime calls, the plugin serves.
pub(crate) const PLUGIN_SERVICE: u32 = 1;
/// The runtime's service: the plugin calls, the runtime serves.
pub(crate) const RUNTIME_SERVICE: u32 = 2;

/// One end of a trunk. Dropping it closes the trunk.
#[derive(Debug)]
pub struct Mux {
    trunk: Arc<Trunk>,
}

/// A logical connection: a stream of bytes each way.
#[derive(Debug)]
pub struct MuxConn {
    id: u32,
    trunk: Arc<Trunk>,
}

/// Sender of a logical connection's messages.
#[derive(Debug, Clone)]
pub(crate) struct MuxSender {
    id: u32,
    trunk: Arc<Trunk>,
}

impl Mux {
    /// Wraps a socket. Nothing is read before [`Mux::start`], so that connections can be opened
    /// first (NRI-117).
    pub fn new(socket: impl Into<Socket>, write_timeout: Duration) -> Self {
        Self::watched(socket, write_timeout, None)
    }

    /// As [`Mux::new`], with an observer of every byte.
    pub(crate) fn watched(
        socket: impl Into<Socket>,
        write_timeout: Duration,
        watch: Option<Box<dyn Watch>>,
    ) -> Self {
        Self {
            trunk: Arc::new(Trunk::new(socket.into(), write_timeout, watch)),
        }
    }

    /// Opens the logical connection `id`. Frames for connections that are not open are dropped.
    pub fn open(&self, id: u32) -> MuxConn {
        self.trunk.inbound.lock().entry(id).or_default();
        MuxConn {
            id,
            trunk: self.trunk.clone(),
        }
    }

    /// Opens the logical connection `id` to answer calls on it. At most one per trunk.
    pub(crate) fn open_for_replies(&self, id: u32) -> MuxConn {
        self.trunk.outbound.lock().replies = Some(Replies::new(id, Instant::now()));
        self.open(id)
    }

    /// Begins to read and write.
    pub fn start(&self) {
        rt::spawn(self.trunk.clone().read());
        rt::spawn(self.trunk.clone().write());
    }

    /// Resolves when the trunk is closed, with the reason.
    pub fn closed(&self) -> impl Future<Output = MuxError> + Send + 'static {
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

impl MuxConn {
    pub(crate) fn sender(&self) -> MuxSender {
        MuxSender {
            id: self.id,
            trunk: self.trunk.clone(),
        }
    }
}

impl MuxSender {
    /// Sends one message, completely or not at all. `message` creates it at its turn, so that
    /// messages are created in the order of the wire.
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

    /// The reason of a closed trunk.
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
    /// Removes the connection locally (NRI-112); later frames for it are dropped.
    fn drop(&mut self) {
        self.trunk.inbound.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests;
