//! Detects that a client has left while its connection is not read.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// Watches a socket without reading it.
pub(super) struct HangUp(OwnedFd);

impl HangUp {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn of(socket: &impl AsFd) -> io::Result<Self> {
        Ok(Self(socket.as_fd().try_clone_to_owned()?))
    }

    /// Returns when the other side has closed the connection, whatever it sent before.
    pub(super) async fn wait(&self) {
        if closed(&self.0).await.is_err() {
            // It cannot be watched: the next write will fail.
            std::future::pending().await
        }
    }
}

async fn closed(socket: &OwnedFd) -> io::Result<()> {
    // Deprecated for descriptors that may be closed meanwhile; this one is borrowed.
    #[expect(deprecated)]
    let watched = AsyncFd::with_interest(socket.as_fd(), Interest::READABLE)?;
    loop {
        let mut guard = watched.readable().await?;
        if guard.ready().is_read_closed() {
            return Ok(());
        }
        guard.clear_ready();
    }
}
