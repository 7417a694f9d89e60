//! The client of an exec or attach: its streams over any protocol.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::timeout,
};
use tokio_tungstenite::WebSocketStream;

use super::{
    hang_up::HangUp,
    limits::CREATION,
    link::{Input, Link, Output},
    spdy::{self, Opened},
    websocket,
    wire::{
        channels,
        handshake::Spdy,
        status::{Format, Outcome},
    },
};

/// More than an exec needs; bounds a client that opens streams again and again.
const MAX_STREAMS: usize = 16;

/// The requested streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

pub(super) struct Remote {
    pub link: Link,
    pub stdin: Option<Input>,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    pub resize: Option<Input>,
    error: Option<Output>,
    status: Format,
    /// Receives further streams of a client, which are not served.
    _late: Option<mpsc::Receiver<Opened>>,
}

impl Remote {
    fn of(link: Link, status: Format) -> Self {
        Self {
            link,
            stdin: None,
            stdout: None,
            stderr: None,
            resize: None,
            error: None,
            status,
            _late: None,
        }
    }

    /// Waits for the client to open the requested streams.
    ///
    /// # Errors
    /// The client does not do so in time, which is reported to it if possible.
    pub(super) async fn by_spdy<S>(
        io: S,
        hang_up: HangUp,
        wanted: Wanted,
        protocol: Spdy,
    ) -> Result<Self, &'static str>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (link, mut opened) = spdy::serve(io, hang_up, MAX_STREAMS);
        let mut remote = Self::of(link, protocol.status);
        let all = |remote: &Self| {
            remote.error.is_some()
                && remote.stdin.is_some() == wanted.stdin
                && remote.stdout.is_some() == wanted.stdout
                && remote.stderr.is_some() == wanted.stderr
                && remote.resize.is_some() == (wanted.tty && protocol.resize)
        };
        let disconnected = remote.link.disconnected();
        let opening = async {
            while !all(&remote) {
                let opened = tokio::select! {
                    opened = opened.recv() => opened,
                    () = disconnected.cancelled() => None,
                };
                match opened {
                    Some(opened) => remote.take(opened, wanted).await,
                    None => return Err("the client left before its streams were open"),
                }
            }
            Ok(())
        };
        let late = "not all streams were opened in time";
        match timeout(CREATION, opening).await.unwrap_or(Err(late)) {
            Ok(()) => {
                remote._late = Some(opened);
                Ok(remote)
            }
            Err(why) => {
                remote.finish(&Outcome::Failed(why.into()), CREATION).await;
                Err(why)
            }
        }
    }

    /// Assigns an opened stream to its purpose, or refuses it.
    async fn take(&mut self, opened: Opened, wanted: Wanted) {
        let kind = opened.headers.get("streamtype").map(str::to_owned);
        match kind.as_deref() {
            Some("error") if self.error.is_none() => {
                self.error = Some(opened.accept().await.1);
            }
            Some("stdin") if self.stdin.is_none() && wanted.stdin => {
                self.stdin = Some(opened.accept().await.0);
            }
            Some("stdout") if self.stdout.is_none() && wanted.stdout => {
                self.stdout = Some(opened.accept().await.1);
            }
            Some("stderr") if self.stderr.is_none() && wanted.stderr => {
                self.stderr = Some(opened.accept().await.1);
            }
            Some("resize") if self.resize.is_none() && wanted.tty => {
                self.resize = Some(opened.accept().await.0);
            }
            _ => opened.refuse().await,
        }
    }

    /// All channels are open from the start.
    pub(super) async fn by_websocket<S>(
        socket: WebSocketStream<S>,
        hang_up: HangUp,
        wanted: Wanted,
        format: channels::Format,
        status: Format,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (link, streams) = websocket::serve(socket, hang_up, format, channels::RESIZE + 1);
        let mut remote = Self::of(link, status);
        for (channel, (input, output)) in (0..).zip(streams) {
            match channel {
                channels::STDIN if wanted.stdin => remote.stdin = Some(input),
                channels::STDOUT if wanted.stdout => remote.stdout = Some(output),
                channels::STDERR if wanted.stderr => remote.stderr = Some(output),
                channels::ERROR => remote.error = Some(output),
                channels::RESIZE if wanted.tty => remote.resize = Some(input),
                // Data on it is dropped with its reader.
                _ => {}
            }
        }
        let first = remote.stdout.as_ref().or(remote.stderr.as_ref());
        if let Some(first) = first.or(remote.error.as_ref()) {
            first.reply().await;
        }
        remote
    }

    /// Ends the session: first the output, then the outcome is reported to the client.
    pub(super) async fn finish(self, outcome: &Outcome, limit: Duration) {
        let reporting = async {
            for output in [&self.stdout, &self.stderr].into_iter().flatten() {
                output.end().await;
            }
            if let Some(error) = &self.error {
                let _ = error.send(outcome.encode(self.status).into()).await;
                error.end().await;
            }
        };
        let _ = timeout(limit, reporting).await;
        self.link.close(limit).await;
    }
}
