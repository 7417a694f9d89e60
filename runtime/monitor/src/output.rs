//! The container's output: read from its pipes or terminal, logged, and copied to attached clients.
//! `reopen` opens the log anew after the kubelet rotated it; `log.rs` formats the lines.
//!
//! No output is dropped: while the pipe of an attached client is full, the container's output stays
//! unread in its own pipe. A client that reads less than [`PACE`] bytes in [`STUCK`] is
//! disconnected, so that it blocks the log and other clients no longer. At the container's end the
//! log gets the rest of the pipes; clients that lag miss it. A log that cannot be written (disk
//! full) never stops the container: lost bytes are counted. While the allowance of CPU time is
//! overdrawn (`allowance.rs`), the server reads no output; only [`Output::close`] always reads.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cairn_monitor::log::{Encoder, Stream};
use cairn_monitor::log_path;
use cairn_monitor::sys;
use cairn_monitor::terminal::read_master;

/// The time in which a lagging attached client must take [`PACE`] bytes.
const STUCK: Duration = Duration::from_secs(2);
/// The capacity of a pipe.
const PACE: usize = 64 << 10;
/// Limit of bytes per read.
pub(crate) const CHUNK: usize = 32 << 10;
/// Limits of the last reads of each source. Only root can make a pipe larger than this.
const LAST: usize = 1 << 20;
const LAST_READS: usize = 1024;

struct Log {
    path: Option<String>,
    encoder: Encoder,
    disk: Disk,
}

/// The file of a log; `None` if the container has no log.
struct Disk {
    file: Option<File>,
    /// The last write ended inside a record.
    torn: bool,
    lost: u64,
}

/// One attached stream: the write end of a pipe whose read end the client has.
struct Copy {
    attach_id: u32,
    stream: Stream,
    pipe: OwnedFd,
    /// Bytes that the pipe did not take.
    waiting: Vec<u8>,
    /// When it began to lag, or last took [`PACE`] bytes; and the bytes taken since then.
    since: Instant,
    taken: usize,
    /// If it lags again soon after this, its time continues: the pipe is still full of old bytes.
    caught_up: Option<Instant>,
}

struct Source {
    stream: Stream,
    fd: OwnedFd,
    tty: bool,
    /// A terminal without a process on the other side: polled again at this time.
    asleep: Option<Instant>,
}

/// Owns the container's output until its end.
pub(crate) struct Output {
    log: Log,
    sources: Vec<Source>,
    copies: Vec<Copy>,
    chunk: Vec<u8>,
}

/// Nanoseconds since 1970.
#[allow(
    clippy::disallowed_methods,
    reason = "the monitor's clock: it shares no code with the daemon's"
)]
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

impl Output {
    pub(crate) fn new(log_path: Option<&str>, max_line: u32) -> io::Result<Output> {
        let log = Log {
            path: log_path.map(str::to_owned),
            encoder: Encoder::new(max_line as usize),
            disk: Disk {
                file: log_path.map(open_log).transpose()?,
                torn: false,
                lost: 0,
            },
        };
        Ok(Output {
            log,
            sources: Vec::new(),
            copies: Vec::new(),
            chunk: Vec::new(),
        })
    }

    pub(crate) fn add(&mut self, stream: Stream, fd: OwnedFd, tty: bool) -> io::Result<()> {
        sys::set_nonblocking(fd.as_fd())?;
        self.sources.push(Source {
            stream,
            fd,
            tty,
            asleep: None,
        });
        Ok(())
    }

    /// Every source has ended.
    pub(crate) fn ended(&self) -> bool {
        self.sources.is_empty()
    }

    /// Descriptors to poll for reading: none while a client lags.
    pub(crate) fn readable(&self) -> Vec<RawFd> {
        if self.copies.iter().any(|c| !c.waiting.is_empty()) {
            return Vec::new();
        }
        self.sources
            .iter()
            .filter(|s| s.asleep.is_none())
            .map(|s| s.fd.as_raw_fd())
            .collect()
    }

    /// Lagging clients' descriptors, to poll for writing. Others notice a hang-up at a write.
    pub(crate) fn writable(&self) -> Vec<RawFd> {
        self.copies
            .iter()
            .filter(|c| !c.waiting.is_empty())
            .map(|c| c.pipe.as_raw_fd())
            .collect()
    }

    /// When `tick` is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let stuck = self
            .copies
            .iter()
            .filter(|c| !c.waiting.is_empty())
            .map(|c| c.since + STUCK);
        stuck
            .chain(self.sources.iter().filter_map(|s| s.asleep))
            .min()
    }

    /// Polls sleeping terminals again, and disconnects stuck clients.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        for source in &mut self.sources {
            source.asleep = source.asleep.filter(|t| *t > now);
        }
        self.copies
            .retain(|c| c.waiting.is_empty() || c.since + STUCK > now);
    }

    /// Reads at most `most` bytes of a descriptor of `readable`. `dying` means that init has exited,
    /// so a terminal stays closed. Returns the number of bytes; 0 if none are available.
    pub(crate) fn read(&mut self, fd: RawFd, dying: bool, most: usize) -> usize {
        let Some(at) = self.sources.iter().position(|s| s.fd.as_raw_fd() == fd) else {
            return 0;
        };
        if self.chunk.is_empty() {
            self.chunk = vec![0; CHUNK];
        }
        let source = &mut self.sources[at];
        let chunk = &mut self.chunk[..most.min(CHUNK)];
        let mut read = || sys::read(source.fd.as_fd(), chunk);
        let read = if source.tty {
            read_master(read)
        } else {
            read()
        };
        let n = match read {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return 0,
            Ok(0) | Err(_) if source.tty && !dying => {
                source.asleep = Some(Instant::now() + Duration::from_millis(100));
                return 0;
            }
            other => other.unwrap_or(0),
        };
        let stream = source.stream;
        if n == 0 {
            self.end(at);
            return 0;
        }
        self.log.write(stream, &self.chunk[..n]);
        for copy in self.copies.iter_mut().filter(|c| c.stream == stream) {
            copy.push(&self.chunk[..n]);
        }
        self.sweep();
        n
    }

    /// Continues writing to a descriptor of `writable`.
    pub(crate) fn write(&mut self, fd: RawFd) {
        if let Some(copy) = self.copies.iter_mut().find(|c| c.pipe.as_raw_fd() == fd) {
            copy.catch_up();
        }
        self.sweep();
    }

    fn end(&mut self, at: usize) {
        let stream = self.sources.remove(at).stream;
        self.log.finish(stream);
        self.sweep();
    }

    /// Reads and logs the rest, then closes everything. Returns the bytes lost by the log.
    pub(crate) fn close(&mut self) -> u64 {
        // Unread because a client lagged, or this process was delayed.
        let fds: Vec<_> = self.sources.iter().map(|s| s.fd.as_raw_fd()).collect();
        for fd in fds {
            let (mut bytes, mut reads) = (0, 0);
            while bytes < LAST && reads < LAST_READS {
                match self.read(fd, true, CHUNK) {
                    0 => break,
                    n => (bytes, reads) = (bytes + n, reads + 1),
                }
            }
        }
        for source in &self.sources {
            self.log.disk.lost += sys::unread(source.fd.as_fd()).unwrap_or(0);
        }
        while !self.sources.is_empty() {
            self.end(0);
        }
        self.chunk = Vec::new();
        self.log.disk.lost
    }

    /// Closes copies with a disconnected client, and those that caught up with an ended stream.
    fn sweep(&mut self) {
        let Output {
            sources, copies, ..
        } = self;
        copies.retain(|c| {
            !c.is_dead() && (!c.waiting.is_empty() || sources.iter().any(|s| s.stream == c.stream))
        });
    }

    /// Adds a copy of a stream; the client gets the read end.
    pub(crate) fn attach(&mut self, attach_id: u32, stream: Stream) -> io::Result<OwnedFd> {
        let (read, write) = sys::pipe()?;
        if self.sources.iter().any(|s| s.stream == stream) {
            sys::set_nonblocking(write.as_fd())?;
            self.copies.push(Copy {
                attach_id,
                stream,
                pipe: write,
                waiting: Vec::new(),
                since: Instant::now(),
                taken: 0,
                caught_up: None,
            });
        }
        Ok(read)
    }

    pub(crate) fn detach(&mut self, attach_id: u32) {
        self.copies.retain(|c| c.attach_id != attach_id);
    }

    /// On return the new file exists and the old one is closed (CRI-138). A failure changes
    /// nothing.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        let path = self
            .log
            .path
            .as_deref()
            .ok_or_else(|| io::Error::other("the container has no log"))?;
        self.log.disk.file = Some(open_log(path)?);
        self.log.disk.torn = false;
        Ok(())
    }
}

impl Copy {
    /// Writes as much as the pipe takes and keeps the rest for [`Self::catch_up`].
    fn push(&mut self, bytes: &[u8]) {
        if !self.waiting.is_empty() {
            // Only at the container's end is output read while a client lags.
            return;
        }
        let written = self.write(bytes);
        if written < bytes.len() {
            self.waiting.extend_from_slice(&bytes[written..]);
            if self.caught_up.is_none_or(|at| at.elapsed() > STUCK) {
                (self.since, self.taken) = (Instant::now(), 0);
            }
        }
    }

    fn catch_up(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let written = self.write(&waiting);
        self.waiting.extend_from_slice(&waiting[written..]);
        if self.waiting.is_empty() {
            self.caught_up = Some(Instant::now());
        }
    }

    /// Returns how much the pipe took.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            match sys::write(self.pipe.as_fd(), &bytes[written..]) {
                Ok(n) => written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.attach_id = DEAD;
                    break;
                }
            }
        }
        self.taken += written;
        if self.taken >= PACE {
            (self.since, self.taken) = (Instant::now(), 0);
        }
        written
    }

    fn is_dead(&self) -> bool {
        self.attach_id == DEAD
    }
}

/// The client has closed its end; no attach session has this id.
const DEAD: u32 = 0;

fn open_log(path: &str) -> io::Result<File> {
    log_path::open(path).map_err(|e| io::Error::new(e.kind(), format!("open the log {path}: {e}")))
}

impl Log {
    fn write(&mut self, stream: Stream, data: &[u8]) {
        let disk = &mut self.disk;
        self.encoder
            .push(stream, data, now(), &mut |records| disk.append(records));
    }

    fn finish(&mut self, stream: Stream) {
        let disk = &mut self.disk;
        self.encoder
            .finish(stream, now(), &mut |records| disk.append(records));
    }
}

impl Disk {
    /// One write(2) for complete records. If the disk takes less, the rest is lost and counted, and
    /// a newline ends the cut record before the next.
    fn append(&mut self, records: &[u8]) {
        let Some(file) = &mut self.file else { return };
        if self.torn {
            if file.write_all(b"\n").is_err() {
                self.lost += records.len() as u64;
                return;
            }
            self.torn = false;
        }
        let mut rest = records;
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(n @ 1..) => {
                    self.torn = rest[n - 1] != b'\n';
                    rest = &rest[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    self.lost += rest.len() as u64;
                    return;
                }
            }
        }
    }
}
