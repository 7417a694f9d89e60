//! The recorder: the file, and the thread that writes the queue to it. That thread owns the file.

use std::{
    fmt, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    connection::RecordedConnection,
    file::{self, Sink},
    line::{FORMAT, Header, Line, Runtime, Values, What, utc},
    queue::{Queue, seconds},
    render::Renderer,
};

/// Bytes of lines per write.
const BATCH: usize = 256 << 10;
/// The longest file, so that a forgotten recording does not fill a disk.
const LONGEST: u64 = 1 << 30;

/// Contents of the first line.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The program that records, with its version.
    pub recorder: String,
    /// The runtime, if it records itself.
    pub runtime: Option<Runtime>,
    pub env: Values,
    /// Current time since the epoch.
    pub now: Duration,
}

/// Result of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub connections: u64,
    pub lines: u64,
    pub dropped: u64,
    /// It ended early, or is still being written.
    pub incomplete: bool,
}

/// Writes the events of its connections. Clones are handles to the same file; dropping the last
/// ends it.
#[derive(Clone)]
pub struct Recorder(Arc<Handle>);

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

struct Handle {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.end();
    }
}

#[derive(Default)]
struct Counts {
    connections: AtomicU64,
    lines: AtomicU64,
    failed: AtomicBool,
}

impl Recorder {
    /// Begins a recording in a private file (0600), which replaces an existing one. `failed` is
    /// called once with the reason if it ends early.
    ///
    /// # Errors
    /// Another kind of file is at its path, a symlink included, or it cannot be written.
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
        // The caller must learn at once that the recording cannot be written.
        sink.append(&first)?;
        let (queue, counts) = (Arc::new(Queue::new()), Arc::<Counts>::default());
        let writer = Writer {
            queue: queue.clone(),
            counts: counts.clone(),
            sink,
            renderer: Renderer::new(about.env),
            written: first.len() as u64,
        };
        std::thread::Builder::new()
            .name("nri-record".to_owned())
            .spawn(move || writer.run(failed))?;
        Ok(Self(Arc::new(Handle { queue, counts })))
    }

    /// Begins to record one plugin connection.
    pub fn connection(&self) -> RecordedConnection {
        let number = 1 + self.0.counts.connections.fetch_add(1, Ordering::Relaxed);
        RecordedConnection::new(self.0.queue.clone(), number)
    }

    /// Ends it and waits for queued events, at most until the limit.
    pub fn finish(&self, limit: Duration) -> Summary {
        let Handle { queue, counts } = &*self.0;
        queue.end();
        let closed = queue.await_close(limit);
        Summary {
            connections: counts.connections.load(Ordering::Relaxed),
            lines: counts.lines.load(Ordering::Relaxed),
            dropped: queue.dropped(),
            incomplete: !closed || counts.failed.load(Ordering::Relaxed),
        }
    }
}

struct Writer<S> {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    sink: S,
    renderer: Renderer,
    written: u64,
}

impl<S: Sink> Writer<S> {
    fn run(mut self, failed: impl FnOnce(&str)) {
        if let Err(why) = self.write_all() {
            self.counts.failed.store(true, Ordering::Relaxed);
            failed(&why);
        }
        self.queue.close();
    }

    fn write_all(&mut self) -> Result<(), String> {
        loop {
            let (events, ending) = self.queue.take();
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
        self.counts.lines.fetch_add(1, Ordering::Relaxed);
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
            at: seconds(self.queue.elapsed()),
            connection: 0,
            plugin: None,
            what: What::Ended { why },
        }
    }
}

#[cfg(test)]
mod tests;
