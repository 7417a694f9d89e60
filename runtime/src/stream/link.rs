//! One client's connection over any protocol: numbered streams of bytes in both directions, with
//! bounds in both.
//!
//! ```text
//!  reader task ──pieces──► Input   (QUEUE pieces each; when one is full, reading stops)
//!  writer task ◄──frames── Output  (QUEUE frames for all; when it is full, senders wait)
//! ```
//! The two tasks are the protocol's (`spdy.rs`, `websocket.rs`). They end with the [`Link`], which
//! the session owns.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{hang_up::HangUp, wire::spdy::Reset};

/// The most bytes of one piece of data.
pub(super) const PIECE: usize = 32 << 10;
/// Pieces queued for one reader here, and frames queued for one client.
const QUEUE: usize = 8;
/// Queued answers of the reader task to the client.
const ANSWERS: usize = 64;
/// The interval of signs of life to a client while its data is not being read.
const ALIVE: Duration = Duration::from_secs(10);
/// The time for a client to close its side after we have closed ours.
const LINGER: Duration = Duration::from_secs(5);

/// Item for the writer task.
#[derive(Debug)]
pub(super) enum Frame {
    /// The stream is served; sent before anything else on it.
    Reply(u32),
    Data(u32, Bytes),
    End(u32),
    Reset(u32, Reset),
    Ping(u32),
    Alive,
    /// The last frame.
    Close,
}

/// The other side accepts or sends no further data.
#[derive(Debug)]
pub(super) struct Closed;

/// Data of a client on one stream.
pub(super) struct Input {
    pieces: mpsc::Receiver<Bytes>,
    reset: CancellationToken,
}

impl Input {
    /// The next bytes; `None` at the end of the input, the stream or the connection.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            biased;
            () = self.reset.cancelled() => None,
            piece = self.pieces.recv() => piece,
        }
    }

    /// Cancelled when the client has reset the stream, or has disconnected.
    pub(super) fn reset(&self) -> CancellationToken {
        self.reset.clone()
    }
}

/// Data for a client on one stream.
#[derive(Clone)]
pub(super) struct Output {
    id: u32,
    frames: mpsc::Sender<Frame>,
    reset: CancellationToken,
    shared: Arc<Shared>,
}

impl Output {
    /// Sends the bytes. Waits while the client is slow.
    ///
    /// # Errors
    /// The stream was reset, or the client has disconnected.
    pub(super) async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(PIECE));
            self.put(Frame::Data(self.id, piece)).await?;
        }
        Ok(())
    }

    /// Ends this side of the stream.
    pub(super) async fn end(&self) {
        if self.put(Frame::End(self.id)).await.is_ok() {
            self.shared.ended_here(self.id);
        }
    }

    /// Ends both sides of the stream.
    pub(super) async fn reset(&self, why: Reset) {
        let _ = self.put(Frame::Reset(self.id, why)).await;
        self.shared.forget(self.id);
    }

    pub(super) async fn reply(&self) {
        let _ = self.put(Frame::Reply(self.id)).await;
    }

    async fn put(&self, frame: Frame) -> Result<(), Closed> {
        tokio::select! {
            biased;
            () = self.reset.cancelled() => Err(Closed),
            sent = self.frames.send(frame) => sent.map_err(|_| Closed),
        }
    }
}

/// One open stream, in the reader task.
struct Entry {
    /// `None` once the client has ended its side.
    to: Option<mpsc::Sender<Bytes>>,
    reset: CancellationToken,
    ended_here: bool,
}

/// Shared by the tasks of a connection and by its streams.
pub(super) struct Shared {
    streams: Mutex<HashMap<u32, Entry>>,
    answers: mpsc::Sender<Frame>,
    disconnected: CancellationToken,
    began: Instant,
    /// Milliseconds from `began` to the last data in either direction.
    active: AtomicU64,
}

impl Shared {
    /// Number of open streams.
    pub(super) fn count(&self) -> usize {
        self.streams.lock().len()
    }

    pub(super) fn open(self: &Arc<Self>, id: u32, frames: &mpsc::Sender<Frame>) -> (Input, Output) {
        let (to, pieces) = mpsc::channel(QUEUE);
        let reset = self.disconnected.child_token();
        let entry = Entry {
            to: Some(to),
            reset: reset.clone(),
            ended_here: false,
        };
        self.streams.lock().insert(id, entry);
        let output = Output {
            id,
            frames: frames.clone(),
            reset: reset.clone(),
            shared: Arc::clone(self),
        };
        (Input { pieces, reset }, output)
    }

    /// Delivers data of the client. Waits until it is taken, and meanwhile checks whether the
    /// client is still connected.
    pub(super) async fn deliver(&self, id: u32, bytes: Bytes, hang_up: &HangUp) {
        self.touch();
        let to = match self.streams.lock().get(&id) {
            Some(entry) => entry.to.clone(),
            None => None,
        };
        let Some(to) = to.filter(|_| !bytes.is_empty()) else {
            return;
        };
        let Err(mpsc::error::TrySendError::Full(bytes)) = to.try_send(bytes) else {
            return;
        };
        let mut alive = tokio::time::interval_at(Instant::now() + ALIVE, ALIVE);
        let sending = to.send(bytes);
        let hung_up = hang_up.wait();
        tokio::pin!(sending, hung_up);
        loop {
            tokio::select! {
                _ = &mut sending => return,
                () = &mut hung_up => return self.disconnected.cancel(),
                () = self.disconnected.cancelled() => return,
                _ = alive.tick() => self.answer(Frame::Alive),
            }
        }
    }

    /// The client has ended its side of a stream.
    pub(super) fn ended_there(&self, id: u32) {
        let mut streams = self.streams.lock();
        if let Some(entry) = streams.get_mut(&id) {
            entry.to = None;
            if entry.ended_here {
                streams.remove(&id);
            }
        }
    }

    fn ended_here(&self, id: u32) {
        let mut streams = self.streams.lock();
        if let Some(entry) = streams.get_mut(&id) {
            entry.ended_here = true;
            if entry.to.is_none() {
                streams.remove(&id);
            }
        }
    }

    /// The client has reset a stream.
    pub(super) fn was_reset(&self, id: u32) {
        if let Some(entry) = self.streams.lock().remove(&id) {
            entry.reset.cancel();
        }
    }

    fn forget(&self, id: u32) {
        self.streams.lock().remove(&id);
    }

    /// Queues an answer of the reader task, which must not wait for the client to read. A client
    /// that requests more answers than it reads gets none.
    pub(super) fn answer(&self, frame: Frame) {
        let _ = self.answers.try_send(frame);
    }

    /// Data moved: the connection is not idle.
    pub(super) fn touch(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.active.store(now, Ordering::Relaxed);
    }

    /// Marks the client as disconnected: nothing comes from it, or nothing reaches it.
    pub(super) fn disconnect(&self) {
        self.disconnected.cancel();
        // The readers of the streams see the end.
        self.streams.lock().clear();
    }
}

/// Source of frames for a protocol's writer task.
pub(super) struct Frames {
    frames: mpsc::Receiver<Frame>,
    answers: mpsc::Receiver<Frame>,
}

impl Frames {
    /// Answers come first: none of them must follow data.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        tokio::select! {
            biased;
            Some(frame) = self.answers.recv() => Some(frame),
            frame = self.frames.recv() => frame,
        }
    }

    /// A frame that is already queued.
    pub(super) fn ready(&mut self) -> Option<Frame> {
        let answer = self.answers.try_recv();
        answer.or_else(|_| self.frames.try_recv()).ok()
    }
}

/// A connection, owned by its session.
pub(super) struct Link {
    pub shared: Arc<Shared>,
    pub frames: mpsc::Sender<Frame>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

/// The parts for the tasks of a protocol.
pub(super) fn channel() -> (Arc<Shared>, mpsc::Sender<Frame>, Frames) {
    let (frames, frames_out) = mpsc::channel(QUEUE);
    let (answers, answers_out) = mpsc::channel(ANSWERS);
    let shared = Shared {
        streams: Mutex::default(),
        answers,
        disconnected: CancellationToken::new(),
        began: Instant::now(),
        active: AtomicU64::new(0),
    };
    let queues = Frames {
        frames: frames_out,
        answers: answers_out,
    };
    (Arc::new(shared), frames, queues)
}

impl Link {
    /// Runs the tasks. The end of either means that the client has disconnected.
    pub(super) fn new(
        shared: Arc<Shared>,
        frames: mpsc::Sender<Frame>,
        reader: impl Future<Output = ()> + Send + 'static,
        writer: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let (in_reader, in_writer) = (Arc::clone(&shared), Arc::clone(&shared));
        Self {
            shared,
            frames,
            reader: tokio::spawn(async move {
                reader.await;
                in_reader.disconnect();
            }),
            writer: tokio::spawn(async move {
                writer.await;
                in_writer.disconnect();
            }),
        }
    }

    /// Cancelled when the client has disconnected.
    pub(super) fn disconnected(&self) -> CancellationToken {
        self.shared.disconnected.clone()
    }

    /// Returns when no data has moved for `limit`.
    pub(super) async fn idle(&self, limit: Duration) {
        loop {
            let active = Duration::from_millis(self.shared.active.load(Ordering::Relaxed));
            let until = self.shared.began + active + limit;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Sends queued frames for at most `limit`, closes the connection, and waits a moment for the
    /// client to do the same: a socket that is closed with unread input would discard output that
    /// the client has not read.
    pub(super) async fn close(mut self, limit: Duration) {
        let closing = async {
            let _ = self.frames.send(Frame::Close).await;
            let _ = (&mut self.writer).await;
        };
        if timeout(limit, closing).await.is_ok() {
            let _ = timeout(LINGER, &mut self.reader).await;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
        self.writer.abort();
        self.shared.disconnect();
    }
}
