//! The event log: a bounded set of files, events waiting for the disk, and subscribers.

use super::event::{Action, Event, SCHEMA, Subject, What};
use super::files::{self, Reader, Rotating};
use super::shares::{Place, Shares};
use super::unwritten::Unwritten;
use super::writer::{self, Account, Job};
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, mpsc, oneshot};

/// Events buffered for one subscriber.
const TO_SUBSCRIBER: usize = 64;
/// Events that a following subscriber may lag behind.
const BEHIND: usize = 2048;
/// How long a new subscriber, or the daemon at its end, waits for the writer.
const FLUSH: Duration = Duration::from_secs(2);

/// How long events beyond a plugin's share are counted.
const COUNT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Options {
    /// Events queued for the writer; further ones are dropped and counted.
    pub queue: usize,
    /// Bytes kept after a failed write until the disk accepts them.
    pub unwritten_bytes: usize,
    pub max_bytes: u64,
    pub files: usize,
    /// The time of day in ns since the epoch, strictly increasing.
    pub now: fn() -> i64,
}

impl Options {
    /// 1 MiB of events waiting for the disk (some 4,000), 4 files of 16 MiB.
    pub fn new(now: fn() -> i64) -> Self {
        Self {
            queue: 1024,
            unwritten_bytes: 1 << 20,
            max_bytes: 16 << 20,
            files: 4,
            now,
        }
    }
}

/// Selects events of pods or containers by id, id prefix, name or `namespace/name`; all if empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(String);

impl Filter {
    pub fn new(wanted: &str) -> Self {
        Self(wanted.to_owned())
    }

    pub fn matches(&self, event: &Event) -> bool {
        let Self(wanted) = self;
        let Subject {
            pod,
            pod_name,
            container,
            container_name,
            ..
        } = &event.subject;
        let name = pod_name.rsplit_once('/').map_or("", |(_, name)| name);
        // Losses concern every subscriber.
        event.missing() > 0
            // The empty prefix matches every id.
            || pod.starts_with(wanted)
            || pod_name == wanted
            || name == wanted
            || container.starts_with(wanted)
            || container_name == wanted
    }
}

/// Clones share it; the writer ends after the last clone, when all its events are written.
#[derive(Debug, Clone)]
pub struct EventLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    now: fn() -> i64,
    next_seq: Mutex<u64>,
    live: broadcast::Sender<Arc<Event>>,
    jobs: SyncSender<Job>,
    account: Arc<Account>,
    shares: Shares,
}

impl EventLog {
    /// Opens the log in `dir`, which is made if missing, and continues its numbers.
    ///
    /// # Errors
    /// The directory cannot be made or read, or no thread can be started.
    pub fn open(dir: &Path, options: &Options) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let next_seq = files::next_seq(dir)?;
        let (jobs, queue) = sync_channel(options.queue.max(1));
        let account = Arc::new(Account {
            lost: AtomicU64::new(0),
            unwritten: Mutex::new(Unwritten::new(options.unwritten_bytes)),
        });
        let files = Rotating::new(dir, options.max_bytes, options.files);
        let shared = Arc::clone(&account);
        std::thread::Builder::new()
            .name("event-log".to_owned())
            .stack_size(writer::STACK)
            .spawn(move || writer::run(&queue, files, &shared))?;
        Ok(Self(Arc::new(Shared {
            dir: dir.to_owned(),
            now: options.now,
            next_seq: Mutex::new(next_seq),
            live: broadcast::Sender::new(BEHIND),
            jobs,
            account,
            shares: Shares::default(),
        })))
    }

    /// Records an event and returns its sequence number. Never blocks or fails: events beyond the
    /// queue are missing in the file, and counted.
    pub fn record(&self, subject: Subject, what: impl Into<What>) -> u64 {
        let what = what.into();
        let shared = &*self.0;
        // Under one lock, so that numbers, times and the file have the same order.
        let mut next_seq = shared.next_seq.lock();
        let event = Arc::new(Event {
            schema: SCHEMA,
            seq: *next_seq,
            wall_ns: (shared.now)(),
            mono_ns: monotonic_ns(),
            subject,
            what,
        });
        *next_seq += 1;
        let seq = event.seq;
        match shared.jobs.try_send(Job::Write(Arc::clone(&event))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                shared.account.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Fails only without a subscriber.
        let _ = shared.live.send(event);
        seq
    }

    /// Records an event that `plugin` can cause at any rate. Events beyond its share are counted in
    /// one event, at most every [`COUNT`], and at the [`end`](Self::end).
    pub fn record_of(&self, plugin: &str, subject: Subject, what: impl Into<What>) {
        match self.0.shares.take(plugin, Instant::now()) {
            Place::Recorded => {
                self.record(subject, what);
            }
            Place::LeftOut => {}
            Place::FirstLeftOut(name) => {
                let log = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(COUNT).await;
                    log.record_left_out(name);
                });
            }
        }
    }

    fn record_left_out(&self, plugin: String) {
        let requests = self.0.shares.left_out(&plugin);
        if requests > 0 {
            self.record(Subject::daemon(), Action::Unrecorded { plugin, requests });
        }
    }

    /// The last flush of the daemon: also writes how many events are not recorded.
    pub async fn end(&self) {
        for name in self.0.shares.names_left_out() {
            self.record_left_out(name);
        }
        self.flush().await;
    }

    /// The number of events lost to a slow writer or a disk that failed for too long.
    pub fn lost(&self) -> u64 {
        self.0.account.lost.load(Ordering::Relaxed)
    }

    /// All past events from files and memory, and with `follow` the coming ones, each once and in
    /// order. The channel ends after the past, or with the log. `Lost` stands for missing events,
    /// and for those missed by a slow reader.
    pub fn subscribe(&self, filter: Filter, follow: bool) -> mpsc::Receiver<Arc<Event>> {
        let (to, receiver) = mpsc::channel(TO_SUBSCRIBER);
        // Taken together, so that each event is in exactly one of both.
        let (first, live) = {
            let next_seq = self.0.next_seq.lock();
            (*next_seq, follow.then(|| self.0.live.subscribe()))
        };
        tokio::spawn(feed(self.clone(), filter, first, live, to));
        receiver
    }

    /// Waits until all recorded events are written, if possible; at most [`FLUSH`] on a stuck disk.
    pub async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        let mut job = Job::Flush(done);
        let written = async {
            // The queue may be full, but drains quickly; unlike `record` this may wait.
            while let Err(TrySendError::Full(back)) = self.0.jobs.try_send(job) {
                job = back;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Fails only if the writer has ended.
            let _ = wait.await;
        };
        let _ = tokio::time::timeout(FLUSH, written).await;
    }
}

/// Sends the past before `first`, then coming events. Ends with the reader.
async fn feed(
    log: EventLog,
    filter: Filter,
    first: u64,
    live: Option<broadcast::Receiver<Arc<Event>>>,
    to: mpsc::Sender<Arc<Event>>,
) {
    log.flush().await;
    let (dir, account) = (log.0.dir.clone(), Arc::clone(&log.0.account));
    // A follower must not keep the log open.
    drop(log);
    let past = (to.clone(), filter.clone());
    let read = tokio::task::spawn_blocking(move || {
        let (to, filter) = past;
        // First, if the writer releases it: events written meanwhile are in both, and sent once.
        let unwritten = account.unwritten.try_lock_for(FLUSH);
        let unwritten = unwritten.map_or_else(Vec::new, |unwritten| unwritten.lines());
        let mut reader = Reader::new(first, |event| {
            !filter.matches(&event) || to.blocking_send(Arc::new(event)).is_ok()
        });
        if let Err(error) = reader.files(&dir) {
            tracing::warn!("event log: cannot read the files: {error}");
        }
        reader.lines(&unwritten);
        reader.missing()
    });
    let missing = read.await.unwrap_or_default();
    if missing > 0 && to.send(Arc::new(lost(missing))).await.is_err() {
        return;
    }
    let Some(mut live) = live else { return };
    loop {
        let received = tokio::select! {
            received = live.recv() => received,
            () = to.closed() => return,
        };
        let event = match received {
            Ok(event) if filter.matches(&event) => event,
            Ok(_) => continue,
            Err(broadcast::error::RecvError::Lagged(events)) => Arc::new(lost(events)),
            Err(broadcast::error::RecvError::Closed) => return,
        };
        if to.send(event).await.is_err() {
            return;
        }
    }
}

/// Replaces events that this reader alone misses; it has neither a number nor the time of day.
fn lost(events: u64) -> Event {
    Event {
        schema: SCHEMA,
        seq: 0,
        wall_ns: 0,
        mono_ns: monotonic_ns(),
        subject: Subject::daemon(),
        what: What::Lost { events },
    }
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
