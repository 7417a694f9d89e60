//! A WebSocket connection: its channels, or the byte stream in its messages.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use futures_util::{
    Sink, SinkExt as _, Stream, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use super::{
    hang_up::HangUp,
    link::{self, Frame, Frames, Input, Link, Output, PIECE, Shared},
    wire::channels::{Format, Incoming},
};

/// The longest accepted message. Clients send some 32 KiB.
const MAX_MESSAGE: usize = 1 << 20;

/// A WebSocket after its handshake.
pub(super) async fn upgraded<S: AsyncRead + AsyncWrite + Unpin>(io: S) -> WebSocketStream<S> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
        .read_buffer_size(PIECE)
        .write_buffer_size(PIECE)
        .max_write_buffer_size(4 * MAX_MESSAGE);
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// Serves `count` channels, from 0 on.
pub(super) fn serve<S>(
    socket: WebSocketStream<S>,
    hang_up: HangUp,
    format: Format,
    count: u8,
) -> (Link, Vec<(Input, Output)>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (shared, frames, queues) = link::channel();
    let streams = (0..count)
        .map(|channel| shared.open(channel.into(), &frames))
        .collect();
    let (sink, stream) = socket.split();
    let (in_reader, in_writer) = (Arc::clone(&shared), Arc::clone(&shared));
    let reading = async move {
        if let Err(error) = read(stream, format, &in_reader, &hang_up).await {
            tracing::debug!(%error, "WebSocket closed");
        }
    };
    let writing = async move {
        if let Err(error) = write(sink, queues, format, &in_writer).await {
            tracing::debug!(%error, "cannot write to a WebSocket");
        }
    };
    (Link::new(shared, frames, reading, writing), streams)
}

async fn read<S>(
    mut stream: SplitStream<WebSocketStream<S>>,
    format: Format,
    shared: &Shared,
    hang_up: &HangUp,
) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = stream.next().await {
        let message: Bytes = match message.map_err(|error| error.to_string())? {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => {
                shared.disconnect();
                continue;
            }
            // The library answers pings.
            _ => continue,
        };
        match format.decode(&message).map_err(|error| error.to_string())? {
            Incoming::Data { channel, mut bytes } => {
                while !bytes.is_empty() {
                    let piece = bytes.split_to(bytes.len().min(PIECE));
                    shared.deliver(channel.into(), piece, hang_up).await;
                }
            }
            Incoming::End { channel } => shared.ended_there(channel.into()),
        }
    }
    Ok(())
}

async fn write<S>(
    mut sink: SplitSink<WebSocketStream<S>, Message>,
    mut queues: Frames,
    format: Format,
    shared: &Shared,
) -> Result<(), tungstenite::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(frame) = queues.next().await {
        match frame {
            Frame::Data(id, bytes) => {
                sink.send(message(format, id, &bytes)).await?;
                shared.touch();
            }
            // A sign of life, as RFC 6455 5.5.3 allows it: a client accepts it for the answer to
            // its ping, which is not read meanwhile.
            Frame::Alive => sink.send(Message::Pong(Bytes::new())).await?,
            // The first message shows that the client is served. Channels end with the socket.
            Frame::Reply(id) => sink.send(message(format, id, &[])).await?,
            Frame::End(_) | Frame::Reset(..) | Frame::Ping(_) => {}
            Frame::Close => {
                sink.send(goodbye()).await?;
                return sink.close().await;
            }
        }
    }
    Ok(())
}

fn message(format: Format, id: u32, bytes: &[u8]) -> Message {
    let channel = u8::try_from(id).unwrap_or(u8::MAX);
    let payload = format.encode(channel, bytes);
    match String::from_utf8(payload) {
        Ok(text) if format.base64 => Message::Text(text.into()),
        Ok(text) => Message::Binary(text.into_bytes().into()),
        Err(binary) => Message::Binary(binary.into_bytes().into()),
    }
}

fn goodbye() -> Message {
    Message::Close(Some(CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    }))
}

/// The messages of a socket as one stream of bytes, each way.
pub(super) struct Tunnel<S> {
    socket: WebSocketStream<S>,
    /// The unread rest of the last message.
    rest: Bytes,
    /// The close message was sent.
    closing: bool,
}

impl<S> Tunnel<S> {
    pub(super) fn new(socket: WebSocketStream<S>) -> Self {
        Self {
            socket,
            rest: Bytes::new(),
            closing: false,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                None | Some(Ok(Message::Close(_))) => return Poll::Ready(Ok(())),
                Some(Ok(Message::Binary(bytes))) => self.rest = bytes,
                Some(Ok(Message::Text(_))) => {
                    let text = "text message in a tunnel of bytes";
                    return Poll::Ready(Err(io::Error::other(text)));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        let n = self.rest.len().min(buf.remaining());
        buf.put_slice(&self.rest[..n]);
        self.rest.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let n = buf.len().min(PIECE);
        let socket = Pin::new(&mut self.socket);
        ready!(socket.poll_ready(cx)).map_err(io::Error::other)?;
        let message = Message::Binary(Bytes::copy_from_slice(&buf[..n]));
        let socket = Pin::new(&mut self.socket);
        Poll::Ready(
            socket
                .start_send(message)
                .map(|()| n)
                .map_err(io::Error::other),
        )
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = Pin::new(&mut self.socket);
        socket.poll_flush(cx).map_err(io::Error::other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            let mut socket = Pin::new(&mut self.socket);
            ready!(socket.as_mut().poll_ready(cx)).map_err(io::Error::other)?;
            socket.start_send(goodbye()).map_err(io::Error::other)?;
            self.closing = true;
        }
        let socket = Pin::new(&mut self.socket);
        socket.poll_flush(cx).map_err(io::Error::other)
    }
}
