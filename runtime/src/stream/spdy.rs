//! A SPDY/3.1 connection: tasks that read and write its frames.
//!
//! No crate fits: `spdystream-rs` 0.1 drops data and has no bounds; `spdy-mux` is GPL, and a client.

use std::{io, sync::Arc};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::mpsc,
};

use super::{
    hang_up::HangUp,
    link::{self, Frame, Frames, Input, Link, Output, PIECE, Shared},
    wire::{
        headers::{Deflater, Headers, Inflater},
        spdy::{self, Control, Header, Reset},
    },
};

/// Streams that a client has opened and the session has not taken.
const OPENED: usize = 16;
/// Bytes after which queued frames are written.
const BATCH: usize = 64 << 10;

/// A stream that the client requests. If dropped, it is forgotten without an answer.
pub(super) struct Opened {
    pub id: u32,
    pub headers: Headers,
    input: Input,
    output: Output,
}

impl Opened {
    pub(super) async fn accept(self) -> (Input, Output) {
        self.output.reply().await;
        (self.input, self.output)
    }

    pub(super) async fn refuse(self) {
        self.output.reset(Reset::Refused).await;
    }
}

/// Serves a connection after its handshake. Streams that the client opens come through the channel;
/// at most `max_streams` are open at a time.
pub(super) fn serve<S>(io: S, hang_up: HangUp, max_streams: usize) -> (Link, mpsc::Receiver<Opened>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (shared, frames, queues) = link::channel();
    let (reads, writes) = tokio::io::split(io);
    let (opened, streams) = mpsc::channel(OPENED);
    let reader = Reader {
        io: BufReader::with_capacity(PIECE, reads),
        shared: Arc::clone(&shared),
        // Must not keep the writer's queue open.
        frames: frames.downgrade(),
        hang_up,
        opened,
        inflater: Inflater::default(),
        max_streams,
        last: 0,
    };
    let reading = async move {
        if let Err(error) = reader.run().await {
            tracing::debug!(%error, "SPDY connection closed");
        }
    };
    let active = Arc::clone(&shared);
    let writing = async move {
        if let Err(error) = write(writes, queues, &active).await {
            tracing::debug!(%error, "cannot write to a SPDY connection");
        }
    };
    (Link::new(shared, frames, reading, writing), streams)
}

struct Reader<R> {
    io: BufReader<R>,
    shared: Arc<Shared>,
    frames: mpsc::WeakSender<Frame>,
    hang_up: HangUp,
    opened: mpsc::Sender<Opened>,
    inflater: Inflater,
    max_streams: usize,
    /// The last stream that was opened.
    last: u32,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads to the end of the connection, or to the first invalid frame.
    async fn run(mut self) -> io::Result<()> {
        loop {
            let mut head = [0; spdy::HEADER];
            match self.io.read_exact(&mut head).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                read => read?,
            };
            match Header::parse(head).map_err(io::Error::other)? {
                Header::Data { stream, fin, len } => self.data(stream, fin, len).await?,
                Header::Control { kind, flags, len } => {
                    let mut payload = vec![0; len];
                    self.io.read_exact(&mut payload).await?;
                    self.control(kind, flags, &payload).await?;
                }
            }
        }
    }

    /// Delivers data as it arrives, however long the frame is.
    async fn data(&mut self, stream: u32, fin: bool, len: usize) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            let want = left.min(PIECE);
            let mut piece = BytesMut::with_capacity(want);
            let got = (&mut self.io)
                .take(want as u64)
                .read_buf(&mut piece)
                .await?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= got;
            self.shared
                .deliver(stream, piece.freeze(), &self.hang_up)
                .await;
        }
        if fin {
            self.shared.ended_there(stream);
        }
        Ok(())
    }

    async fn control(&mut self, kind: u16, flags: u8, payload: &[u8]) -> io::Result<()> {
        match Control::parse(kind, flags, payload).map_err(io::Error::other)? {
            Control::SynStream { stream, fin, block } => {
                let headers = self.inflater.block(block).map_err(io::Error::other)?;
                self.open(stream, fin, headers).await;
            }
            // The content is unused, but each block is needed to read the next.
            Control::SynReply { block } => {
                self.inflater.block(block).map_err(io::Error::other)?;
            }
            Control::Headers { stream, fin, block } => {
                self.inflater.block(block).map_err(io::Error::other)?;
                if fin {
                    self.shared.ended_there(stream);
                }
            }
            Control::RstStream { stream } => self.shared.was_reset(stream),
            // Even numbers are ours: such a ping is an answer.
            Control::Ping { id } if id % 2 == 1 => self.shared.answer(Frame::Ping(id)),
            // Clients send it when they leave.
            Control::GoAway => self.shared.disconnect(),
            Control::Ping { .. } | Control::Other => {}
        }
        Ok(())
    }

    async fn open(&mut self, stream: u32, fin: bool, headers: Headers) {
        if stream.is_multiple_of(2) || stream <= self.last {
            return self.shared.answer(Frame::Reset(stream, Reset::Protocol));
        }
        self.last = stream;
        let frames = self.frames.upgrade();
        let Some(frames) = frames.filter(|_| self.shared.count() < self.max_streams) else {
            return self.shared.answer(Frame::Reset(stream, Reset::Refused));
        };
        let (input, output) = self.shared.open(stream, &frames);
        if fin {
            self.shared.ended_there(stream);
        }
        let opened = Opened {
            id: stream,
            headers,
            input,
            output,
        };
        // A session that is ending takes no more streams.
        let _ = self.opened.send(opened).await;
    }
}

async fn write<W>(mut io: W, mut queues: Frames, shared: &Shared) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let mut deflater = Deflater::default();
    let mut out = Vec::new();
    let mut pings = 0;
    let mut last = 0;
    while let Some(first) = queues.next().await {
        let mut next = Some(first);
        let (mut closing, mut moved) = (false, false);
        while let Some(frame) = next {
            match frame {
                Frame::Reply(id) => {
                    last = last.max(id);
                    spdy::put_reply(&mut out, id, &deflater.empty_block());
                }
                Frame::Data(id, bytes) => {
                    moved = true;
                    spdy::put_data(&mut out, id, false, bytes.len());
                    out.extend_from_slice(&bytes);
                }
                Frame::End(id) => spdy::put_data(&mut out, id, true, 0),
                Frame::Reset(id, why) => spdy::put_reset(&mut out, id, why),
                Frame::Ping(id) => spdy::put_ping(&mut out, id),
                Frame::Alive => {
                    pings += 2;
                    spdy::put_ping(&mut out, pings);
                }
                Frame::Close => {
                    spdy::put_goaway(&mut out, last);
                    closing = true;
                }
            }
            next = if closing || out.len() >= BATCH {
                None
            } else {
                queues.ready()
            };
        }
        io.write_all(&out).await?;
        io.flush().await?;
        if moved {
            shared.touch();
        }
        out.clear();
        if closing {
            break;
        }
        if out.capacity() > 2 * BATCH {
            out = Vec::new();
        }
    }
    io.shutdown().await
}
