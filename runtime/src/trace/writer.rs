//! The thread that writes the event log. It alone touches the files that are being written; nobody
//! waits for it but [`EventLog::flush`](super::log::EventLog::flush).

use super::event::Event;
use super::files::Rotating;
use super::unwritten::{Batch, Unwritten};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;
use tokio::sync::oneshot;

/// Stack of the writer: it formats and writes, nothing is nested.
pub const STACK: usize = 256 << 10;
/// Events that are written by one `write(2)` at most.
const BATCH: u64 = 256;

/// Between two writes. What is recorded meanwhile is written together: in the way of a plugin's call, to wake the writer
/// would cost as much as the call.
const PAUSE: Duration = Duration::from_millis(1);

/// Message of the log to its writer.
pub enum Job {
    Write(Arc<Event>),
    /// Answered when all jobs before it are done.
    Flush(oneshot::Sender<()>),
}

/// What the log and its writer share.
#[derive(Debug)]
pub struct Account {
    /// Events that found the queue full.
    pub refused: AtomicU64,
    /// Events that were too much to wait for the disk.
    pub dropped: AtomicU64,
    pub unwritten: Mutex<Unwritten>,
}

/// Runs until the log is dropped. A line that says how many events are missing stands in the file where they are.
pub fn run(jobs: &Receiver<Job>, mut files: Rotating, account: &Account) {
    let mut told = 0;
    let mut failing = false;
    while let Ok(first) = jobs.recv() {
        let mut batch = Batch::default();
        let mut flushes = Vec::new();
        let mut take = |job, batch: &mut Batch| match job {
            Job::Flush(waiting) => flushes.push(waiting),
            Job::Write(event) => batch.push(&event),
        };
        take(first, &mut batch);
        while batch.events() < BATCH
            && let Ok(next) = jobs.try_recv()
        {
            take(next, &mut batch);
        }
        let mut unwritten = account.unwritten.lock();
        if batch.events() > 0 {
            let refused = account.refused.load(Ordering::Relaxed);
            batch.lacks(refused - told);
            told = refused;
            unwritten.push(batch);
        }
        let written = unwritten.write(&mut files);
        unwritten.bound(&account.dropped);
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
