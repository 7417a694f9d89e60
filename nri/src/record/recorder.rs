//! The recorder: a queue with a bound, and the thread that writes what is in it.
//!
//! The file is that thread's alone. Who tells something waits for a mutex that is never held while anything is written.

use std::{
    collections::VecDeque,
    fmt, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{
    connection::RecordedConnection,
    file::{self, Sink},
    frames::Message,
    line::{FORMAT, Header, Line, Runtime, Side, Values, What, utc},
    render::Renderer,
};

/// Bytes that may wait to be written; as many again are being written.
const BUDGET: usize = 16 << 20;
/// What an event takes beside its bytes.
const OVERHEAD: usize = 256;
/// Bytes of lines that are written at once.
const BATCH: usize = 256 << 10;
/// The longest file: a recording that is forgotten fills no disk.
const LONGEST: u64 = 1 << 30;

/// What the first line tells.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The program that records, with its version.
    pub recorder: String,
    /// The runtime, where it records itself.
    pub runtime: Option<Runtime>,
    pub env: Values,
    /// Now, since the epoch.
    pub now: Duration,
}

/// What there is to be written.
#[derive(Debug)]
pub(super) struct Event {
    pub at: Duration,
    pub connection: u64,
    pub happened: Happened,
}

#[derive(Debug)]
pub(super) enum Happened {
    Opened,
    Message {
        from: Side,
        message: Message,
    },
    Unread {
        from: Side,
        why: String,
        bytes: Vec<u8>,
    },
    Closed {
        by: Option<Side>,
        why: String,
    },
    Dropped(u64),
}

impl Event {
    fn size(&self) -> usize {
        OVERHEAD
            + match &self.happened {
                Happened::Message { message, .. } => message.body.len(),
                Happened::Unread { bytes, .. } => bytes.len(),
                Happened::Opened | Happened::Closed { .. } | Happened::Dropped(_) => 0,
            }
    }
}

/// What a recording came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub connections: u64,
    pub lines: u64,
    pub dropped: u64,
    /// It ended before it was told to, or is still being written.
    pub incomplete: bool,
}

/// Writes what its connections see. Clones are handles to the same file; when the last is dropped, it is ended.
#[derive(Clone)]
pub struct Recorder(Arc<Handle>);

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

struct Handle {
    shared: Arc<Shared>,
    began: Instant,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.end();
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// For the thread: there is something to do. For who waits for the end: it has come.
    changed: Condvar,
    over: AtomicBool,
    failed: AtomicBool,
    connections: AtomicU64,
    lines: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    bytes: usize,
    ending: bool,
    ended: bool,
}

impl Recorder {
    /// Begins a recording: a file for us alone (0600), in place of one that is there. `failed` is called once, should it
    /// end early, with the reason.
    ///
    /// # Errors
    /// There is something else in its place, a symlink included, or it cannot be written.
    pub fn create(
        path: &Path,
        about: About,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        Self::begin(file::create(path)?, about, failed)
    }

    fn begin(
        mut sink: impl Sink,
        about: About,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let header = Header {
            format: FORMAT,
            recorder: about.recorder,
            began: utc(about.now),
            env: about.env,
            runtime: about.runtime,
        };
        let mut first = serde_json::to_vec(&header)?;
        first.push(b'\n');
        // Whoever asked for a recording is to know at once that there can be none.
        sink.append(&first)?;
        let began = Instant::now();
        let shared = Arc::<Shared>::default();
        let writer = Writer {
            shared: shared.clone(),
            sink,
            renderer: Renderer::new(about.env),
            began,
            written: first.len() as u64,
        };
        std::thread::Builder::new()
            .name("nri-record".to_owned())
            .spawn(move || writer.run(failed))?;
        Ok(Self(Arc::new(Handle { shared, began })))
    }

    /// Begins to record one connection of a plugin.
    pub fn connection(&self) -> RecordedConnection {
        let number = 1 + self.0.shared.connections.fetch_add(1, Ordering::Relaxed);
        RecordedConnection::new(self.clone(), number)
    }

    /// Ends it and waits for what is still to be written, but no longer than this.
    pub fn finish(&self, limit: Duration) -> Summary {
        let shared = &self.0.shared;
        shared.end();
        let deadline = Instant::now() + limit;
        let mut queue = shared.queue.lock();
        while !queue.ended && !shared.changed.wait_until(&mut queue, deadline).timed_out() {}
        Summary {
            connections: shared.connections.load(Ordering::Relaxed),
            lines: shared.lines.load(Ordering::Relaxed),
            dropped: shared.dropped.load(Ordering::Relaxed),
            incomplete: !queue.ended || shared.failed.load(Ordering::Relaxed),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// Nothing will be written any more.
    pub(super) fn is_over(&self) -> bool {
        self.0.shared.over.load(Ordering::Relaxed)
    }

    pub(super) fn tell(&self, event: Event) {
        let shared = &self.0.shared;
        if self.is_over() {
            return;
        }
        shared.queue.lock().push(event, &shared.dropped);
        shared.changed.notify_all();
    }
}

impl Queue {
    fn push(&mut self, event: Event, dropped: &AtomicU64) {
        if self.ending {
            return;
        }
        let size = event.size();
        if self.bytes + size <= BUDGET {
            self.bytes += size;
            self.events.push_back(event);
            return;
        }
        dropped.fetch_add(1, Ordering::Relaxed);
        match self.events.back_mut().map(|last| &mut last.happened) {
            Some(Happened::Dropped(lines)) => *lines += 1,
            // One such line, until there is room again.
            _ => self.events.push_back(Event {
                connection: 0,
                happened: Happened::Dropped(1),
                ..event
            }),
        }
    }
}

impl Shared {
    fn end(&self) {
        self.queue.lock().ending = true;
        self.changed.notify_all();
    }
}

struct Writer<S> {
    shared: Arc<Shared>,
    sink: S,
    renderer: Renderer,
    began: Instant,
    written: u64,
}

impl<S: Sink> Writer<S> {
    fn run(mut self, failed: impl FnOnce(&str)) {
        let done = self.write_all();
        let shared = &self.shared;
        shared.over.store(true, Ordering::Relaxed);
        if let Err(why) = done {
            shared.failed.store(true, Ordering::Relaxed);
            failed(&why);
        }
        let mut queue = shared.queue.lock();
        queue.ending = true;
        queue.ended = true;
        queue.events = VecDeque::new();
        drop(queue);
        shared.changed.notify_all();
    }

    fn write_all(&mut self) -> Result<(), String> {
        loop {
            let (events, ending) = self.await_events();
            let mut lines = Vec::new();
            for event in events {
                let line = self.renderer.line(event);
                self.put(&line, &mut lines)?;
                if lines.len() >= BATCH {
                    self.append(&mut lines)?;
                }
            }
            if ending {
                let line = self.ended(String::new());
                self.put(&line, &mut lines)?;
                return self.append(&mut lines);
            }
            self.append(&mut lines)?;
        }
    }

    fn await_events(&self) -> (VecDeque<Event>, bool) {
        let mut queue = self.shared.queue.lock();
        while queue.events.is_empty() && !queue.ending {
            self.shared.changed.wait(&mut queue);
        }
        queue.bytes = 0;
        (std::mem::take(&mut queue.events), queue.ending)
    }

    fn put(&mut self, line: &Line, lines: &mut Vec<u8>) -> Result<(), String> {
        let before = lines.len();
        serde_json::to_writer(&mut *lines, line).map_err(|e| e.to_string())?;
        lines.push(b'\n');
        if self.written + lines.len() as u64 > LONGEST {
            lines.truncate(before);
            self.append(lines)?;
            let why = format!("it has {LONGEST} bytes, the most that a recording may have");
            let mut last = serde_json::to_vec(&self.ended(why.clone())).unwrap_or_default();
            last.push(b'\n');
            self.append(&mut last)?;
            return Err(why);
        }
        self.shared.lines.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn append(&mut self, lines: &mut Vec<u8>) -> Result<(), String> {
        if lines.is_empty() {
            return Ok(());
        }
        self.sink.append(lines).map_err(|e| e.to_string())?;
        self.written += lines.len() as u64;
        lines.clear();
        Ok(())
    }

    fn ended(&self, why: String) -> Line {
        Line {
            at: seconds(self.began.elapsed()),
            connection: 0,
            plugin: None,
            what: What::Ended { why },
        }
    }
}

/// With microseconds, which is what the clocks of two hosts agree on at best.
pub(super) fn seconds(time: Duration) -> f64 {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX)).as_secs_f64()
}

#[cfg(test)]
mod tests;
