//! Detects an NRI plugin that connects to the CRI socket, by its first bytes, and logs the mistake:
//! the plugin and the HTTP/2 server would only report broken protocols.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};
use tonic::transport::server::{Connected, UdsConnectInfo};

/// Gets the pid of the plugin.
pub(super) type Report = Arc<dyn Fn(Option<u32>) + Send + Sync>;

/// A client whose first bytes are looked at.
pub(super) struct Client {
    stream: UnixStream,
    report: Option<Report>,
}

impl Client {
    pub(super) fn new(stream: UnixStream, report: Report) -> Self {
        let report = Some(report);
        Self { stream, report }
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut UnixStream> {
        Pin::new(&mut self.get_mut().stream)
    }
}

/// Frames of NRI begin with the number of a connection, 1 or 2, in four bytes; HTTP/2 begins with
/// text.
fn is_frame_of_nri(bytes: &[u8]) -> bool {
    matches!(bytes, [0, 0, 0, 1 | 2, ..])
}

impl AsyncRead for Client {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let client = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut client.stream).poll_read(cx, buf))?;
        if let Some(report) = client.report.take()
            && is_frame_of_nri(&buf.filled()[before..])
        {
            let peer = client.stream.peer_cred().ok();
            let pid = peer.and_then(|peer| u32::try_from(peer.pid()?).ok());
            report(pid);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}

impl Connected for Client {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}
