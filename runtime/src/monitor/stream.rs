//! Tokio streams of a process in a container: pipes, and the master side of a terminal.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cairn_monitor::terminal::read_master;
use cairn_monitor::wire::Streams;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The input of a process. Dropping it closes this side.
pub type StreamIn = Box<dyn AsyncWrite + Send + Unpin>;
/// The output of a process. End of file follows the close by the last writer.
pub type StreamOut = Box<dyn AsyncRead + Send + Unpin>;

/// The master side of a terminal; clones share it.
#[derive(Clone)]
pub struct Pty {
    fd: Arc<AsyncFd<OwnedFd>>,
}

impl Pty {
    /// Takes over a descriptor and makes it non-blocking.
    fn new(fd: OwnedFd) -> io::Result<Pty> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // Deprecated for descriptor types that can be closed or replaced; an OwnedFd in an Arc
        // cannot.
        #[expect(deprecated)]
        let fd = AsyncFd::new(fd)?;
        Ok(Pty { fd: Arc::new(fd) })
    }

    /// Sets the window size; the kernel sends SIGWINCH.
    pub fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(tcsetwinsize(self.fd.get_ref().as_fd(), size)?)
    }
}

impl AsyncRead for Pty {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let read = guard.try_io(|fd| {
                read_master(|| Ok(rustix::io::read(fd.get_ref(), buf.initialize_unfilled())?))
            });
            if let Ok(read) = read {
                buf.advance(read?);
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Pty {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            if let Ok(result) = guard.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), buf)?)) {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The descriptors of an answer.
#[derive(Default)]
pub(super) struct Taken {
    pub stdin: Option<StreamIn>,
    pub stdout: Option<StreamOut>,
    pub stderr: Option<StreamOut>,
    /// A terminal's master: for an exec instead of all others, for an attach beside stdout.
    pub pty: Option<Pty>,
}

impl Taken {
    pub(super) fn new(streams: Streams, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let mut fds = fds.into_iter();
        let mut taken = Self::default();
        if streams.stdin {
            taken.stdin = fds.next().map(pipe_in).transpose()?;
        }
        if streams.stdout {
            taken.stdout = fds.next().map(pipe_out).transpose()?;
        }
        if streams.stderr {
            taken.stderr = fds.next().map(pipe_out).transpose()?;
        }
        if streams.master {
            taken.pty = fds.next().map(Pty::new).transpose()?;
        }
        Ok(taken)
    }
}

/// The read end of a pipe.
fn pipe_out(fd: OwnedFd) -> io::Result<StreamOut> {
    Ok(Box::new(tokio::net::unix::pipe::Receiver::from_owned_fd(
        fd,
    )?))
}

/// The write end of a pipe.
fn pipe_in(fd: OwnedFd) -> io::Result<StreamIn> {
    Ok(Box::new(tokio::net::unix::pipe::Sender::from_owned_fd(fd)?))
}
