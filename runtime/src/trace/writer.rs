//! The thread that writes the event log. It alone touches the files that are being written; nobody
//! waits for it but [`EventLog::flush`](super::log::EventLog::flush).

use super::event::Event;
use super::files::Rotating;
use super::unwritten::{Batch, Unwritten};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Stack of the writer: it formats and writes, nothing is nested.
pub(super) const STACK: usize = 256 << 10;
/// Events that are written by one `write(2)` at most.
const BATCH: u64 = 256;

/// Between two writes. What is recorded meanwhile is written together: in the way of a plugin's call, to wake the writer
/// would cost as much as the call.
const PAUSE: Duration = Duration::from_millis(1);
/// What the disk refused is tried again after so long, also where nothing happens.
const AGAIN: Duration = Duration::from_secs(1);

/// Message of the log to its writer.
pub(super) enum Job {
    Write(Arc<Event>),
    /// Answered when all jobs before it are done.
    Flush(oneshot::Sender<()>),
}

/// What the log and its writer share.
#[derive(Debug)]
pub(super) struct Account {
    /// Events that will be in no file: they found the queue full, or were too much to wait for the disk.
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
                "event log: write: {error}; events stay in memory until this works again"
            );
        }
        failing = written.is_err();
        for waiting in flushes {
            // Whoever waited may have gone.
            let _ = waiting.send(());
        }
        std::thread::sleep(PAUSE);
    }
}
