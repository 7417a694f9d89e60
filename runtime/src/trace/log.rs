//! The event log: a bounded ring in memory, a bounded set of files behind it, and subscribers.

use super::event::{Event, SCHEMA, Subject, What};
use super::files::{self, Rotating};
use super::writer::{self, Job};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};

/// Events in flight to one subscriber.
const TO_SUBSCRIBER: usize = 64;
/// How long a new subscriber waits for the writer.
const FLUSH: Duration = Duration::from_secs(2);

/// The bounds of a log.
#[derive(Debug, Clone)]
pub struct Options {
    /// Events kept in memory; also how far a following subscriber may fall behind.
    pub ring: usize,
    /// Events on their way to the file; more are dropped and counted.
    pub queue: usize,
    /// A file is closed before it would exceed this many bytes.
    pub max_bytes: u64,
    /// So many files are kept.
    pub files: usize,
    /// The time of day in ns since the epoch, each answer later than the one before.
    pub now: fn() -> i64,
}

impl Options {
    /// 4096 events in memory (about 2 MB), 8 files of 4 MiB.
    pub fn new(now: fn() -> i64) -> Self {
        Self {
            ring: 4096,
            queue: 1024,
            max_bytes: 4 << 20,
            files: 8,
            now,
        }
    }
}

/// Which events a subscriber wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    All,
    /// Those of the pods or containers that this names: an id, the beginning of one, a name, or a pod's `namespace/name`.
    Named(String),
}

impl Filter {
    /// As a request has it: empty means all.
    pub fn new(pod: &str) -> Self {
        if pod.is_empty() {
            Self::All
        } else {
            Self::Named(pod.to_owned())
        }
    }

    pub fn matches(&self, event: &Event) -> bool {
        let Self::Named(wanted) = self else {
            return true;
        };
        let Subject {
            pod,
            pod_name,
            container,
            container_name,
            ..
        } = &event.subject;
        let name = pod_name.rsplit_once('/').map_or("", |(_, name)| name);
        // Losses concern everybody.
        matches!(event.what, What::Lost { .. })
            || pod.starts_with(wanted)
            || pod_name == wanted
            || name == wanted
            || container.starts_with(wanted)
            || container_name == wanted
    }
}

/// Cheap to clone; the writer ends, after what it was given is written, with the last clone.
#[derive(Debug, Clone)]
pub struct EventLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    now: fn() -> i64,
    ring: Mutex<Ring>,
    live: broadcast::Sender<Arc<Event>>,
    jobs: SyncSender<Job>,
    /// Events that are not in the file, or will not be.
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    capacity: usize,
    next_seq: u64,
}

impl EventLog {
    /// Opens the log in `dir`, which is made if it is missing, and goes on counting where the last
    /// daemon ended.
    ///
    /// # Errors
    /// The directory cannot be made or read, or no thread can be started.
    pub fn open(dir: &Path, options: &Options) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let next_seq = files::next_seq(dir)?;
        let (jobs, queue) = sync_channel(options.queue.max(1));
        let lost = Arc::new(AtomicU64::new(0));
        let files = Rotating::new(dir, options.max_bytes, options.files);
        let counter = Arc::clone(&lost);
        std::thread::Builder::new()
            .name("event-log".to_owned())
            .stack_size(writer::STACK)
            .spawn(move || writer::run(&queue, files, &counter))?;
        let capacity = options.ring.max(1);
        let ring = Ring {
            events: VecDeque::new(),
            capacity,
            next_seq,
        };
        Ok(Self(Arc::new(Shared {
            dir: dir.to_owned(),
            now: options.now,
            ring: Mutex::new(ring),
            live: broadcast::Sender::new(capacity),
            jobs,
            lost,
        })))
    }

    /// Records an event and returns its sequence number. Never blocks and never fails: what the
    /// writer cannot take now is missing in the file, and counted.
    pub fn record(&self, subject: Subject, what: impl Into<What>) -> u64 {
        let what = what.into();
        let shared = &*self.0;
        // The order of numbers, of times and of the ring is one, so all are given under the lock.
        let mut ring = shared.ring.lock();
        let event = Arc::new(Event {
            schema: SCHEMA,
            seq: ring.next_seq,
            wall_ns: (shared.now)(),
            mono_ns: monotonic_ns(),
            subject,
            what,
        });
        ring.next_seq += 1;
        if ring.events.len() == ring.capacity {
            ring.events.pop_front();
        }
        ring.events.push_back(Arc::clone(&event));
        let seq = event.seq;
        match shared.jobs.try_send(Job::Write(Arc::clone(&event))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                shared.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        // An error means that nobody is listening.
        let _ = shared.live.send(event);
        seq
    }

    /// Events of the ring that `filter` lets through, oldest first.
    pub fn recent(&self, filter: &Filter) -> Vec<Arc<Event>> {
        let ring = self.0.ring.lock();
        let wanted = ring.events.iter().filter(|e| filter.matches(e));
        wanted.cloned().collect()
    }

    /// How many events are not in the file because the writer was too slow or the disk refused.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// All events of the past that are kept, from files and memory, and with `follow` those to come,
    /// in order, each once. The channel ends after the past, or, following, with the log. A reader
    /// that falls behind by more than the ring gets a `Lost` in place of what it missed.
    pub fn subscribe(&self, filter: Filter, follow: bool) -> mpsc::Receiver<Arc<Event>> {
        let (to, receiver) = mpsc::channel(TO_SUBSCRIBER);
        // Taken together, so that no event is in both or in neither.
        let (ring, first, live) = {
            let ring = self.0.ring.lock();
            let first = ring.events.front().map_or(ring.next_seq, |e| e.seq);
            let live = follow.then(|| self.0.live.subscribe());
            (ring.events.iter().cloned().collect(), first, live)
        };
        tokio::spawn(feed(self.clone(), filter, first, ring, live, to));
        receiver
    }

    /// Waits until all that was recorded before is in the file, as far as it can be written.
    pub async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        let mut job = Job::Flush(done);
        // The queue may be full; it drains quickly, and unlike `record` this may wait.
        while let Err(TrySendError::Full(back)) = self.0.jobs.try_send(job) {
            job = back;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // An error means that the writer is gone, and with it what could be waited for.
        let _ = wait.await;
    }
}

/// Sends the past from the files, then from the ring, then what comes. Ends when the reader is gone.
async fn feed(
    log: EventLog,
    filter: Filter,
    first: u64,
    ring: Vec<Arc<Event>>,
    live: Option<broadcast::Receiver<Arc<Event>>>,
    to: mpsc::Sender<Arc<Event>>,
) {
    // What left the ring may still be on its way to the file; a stuck disk must not hold us.
    let _ = tokio::time::timeout(FLUSH, log.flush()).await;
    let dir = log.0.dir.clone();
    // A following reader does not keep the log open.
    drop(log);
    let past = (to.clone(), filter.clone());
    let read = tokio::task::spawn_blocking(move || {
        let (to, filter) = past;
        files::read(&dir, first, |event| {
            !filter.matches(&event) || to.blocking_send(Arc::new(event)).is_ok()
        })
    });
    match read.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("event log: read: {error}"),
        Err(error) => tracing::warn!("event log: read: {error}"),
    }
    for event in ring {
        if filter.matches(&event) && to.send(event).await.is_err() {
            return;
        }
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
            Err(broadcast::error::RecvError::Lagged(events)) => Arc::new(Event {
                schema: SCHEMA,
                seq: 0,
                wall_ns: 0,
                mono_ns: monotonic_ns(),
                subject: Subject::daemon(),
                what: What::Lost { events },
            }),
            Err(broadcast::error::RecvError::Closed) => return,
        };
        if to.send(event).await.is_err() {
            return;
        }
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
