//! The thread that writes the event log. Only this thread writes its files; only
//! [`EventLog::flush`](super::log::EventLog::flush) waits for it.

use super::event::Event;
use super::files::Rotating;
use super::unwritten::{Batch, Unwritten};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Stack of the writer, which has no deep calls.
pub(super) const STACK: usize = 256 << 10;
/// Limit of events per `write(2)`.
const BATCH: u64 = 256;

/// Pause between two writes, which batches events: waking the writer costs as much as a plugin
/// call.
const PAUSE: Duration = Duration::from_millis(1);
/// Retry interval after a failed write, also without new events.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) enum Job {
    Write(Arc<Event>),
    /// Answered after all earlier jobs.
    Flush(oneshot::Sender<()>),
}

/// Shared by the log and its writer.
#[derive(Debug)]
pub(super) struct Account {
    /// Events in no file: the queue was full, or too many waited for the disk.
    pub lost: AtomicU64,
    pub unwritten: Mutex<Unwritten>,
}

/// Runs until the log is dropped.
pub(super) fn run(jobs: &Receiver<Job>, mut files: Rotating, account: &Account) {
    let mut failing = false;
    loop {
        let patience = if failing { AGAIN } else { Duration::MAX };
        let mut next = match jobs.recv_timeout(patience) {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut batch = Batch::default();
        let mut flushes = Vec::new();
        while let Some(job) = next {
            match job {
                Job::Flush(waiting) => flushes.push(waiting),
                Job::Write(event) => batch.push(&event),
            }
            next = (batch.events() < BATCH)
                .then(|| jobs.try_recv().ok())
                .flatten();
        }
        let mut unwritten = account.unwritten.lock();
        if batch.events() > 0 {
            unwritten.push(batch);
        }
        let written = unwritten.write(&mut files);
        unwritten.bound(&account.lost);
        drop(unwritten);
        if let (Err(error), false) = (&written, failing) {
            tracing::warn!(
                "event log: cannot write, retrying every {AGAIN:?}; events stay in memory: {error}"
            );
        }
        failing = written.is_err();
        for waiting in flushes {
            // The waiting task may have ended.
            let _ = waiting.send(());
        }
        std::thread::sleep(PAUSE);
    }
}
