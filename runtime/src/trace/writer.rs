//! The thread that writes the event log. It alone touches the files that are being written; nobody
//! waits for it but [`EventLog::flush`](super::log::EventLog::flush).

use super::event::{Event, SCHEMA, Subject, What};
use super::files::Rotating;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use tokio::sync::oneshot;

/// Stack of the writer: it formats and writes, nothing is nested.
pub const STACK: usize = 256 << 10;
/// Events that are written by one `write(2)` at most.
const BATCH: usize = 256;

/// Message of the log to its writer.
pub enum Job {
    Write(Arc<Event>),
    /// Answered when all jobs before it are done.
    Flush(oneshot::Sender<()>),
}

/// Runs until the log is dropped. `lost` counts events that found the queue full or could not be
/// written; a line that says so stands in the file where they are missing.
pub fn run(jobs: &Receiver<Job>, mut files: Rotating, lost: &AtomicU64) {
    let mut told = 0;
    let mut failing = false;
    while let Ok(first) = jobs.recv() {
        let mut batch = Batch::default();
        batch.take(first);
        while batch.events < BATCH
            && let Ok(next) = jobs.try_recv()
        {
            batch.take(next);
        }
        if let Some(event) = &batch.first {
            let missing = lost.load(Ordering::Relaxed) - told;
            let written = files.append(event.seq, &batch.with_loss(missing, event));
            match written {
                Ok(()) => told += missing,
                Err(_) => _ = lost.fetch_add(batch.events as u64, Ordering::Relaxed),
            }
            if let (Err(error), false) = (&written, failing) {
                tracing::warn!("event log: write: {error}; events are lost until this works again");
            }
            failing = written.is_err();
        }
        for waiting in batch.flushes {
            // Whoever waited may have gone.
            let _ = waiting.send(());
        }
    }
}

#[derive(Default)]
struct Batch {
    first: Option<Arc<Event>>,
    events: usize,
    lines: Vec<u8>,
    flushes: Vec<oneshot::Sender<()>>,
}

impl Batch {
    fn take(&mut self, job: Job) {
        match job {
            Job::Flush(waiting) => self.flushes.push(waiting),
            Job::Write(event) => {
                push_line(&mut self.lines, &event);
                self.events += 1;
                self.first.get_or_insert(event);
            }
        }
    }

    /// The lines, after one that tells how many are missing before them, if any. That line takes no
    /// number of its own: it has the number of the first one missing, as far as that is known.
    fn with_loss(&self, missing: u64, first: &Event) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.lines.len() + 128);
        if missing > 0 {
            let loss = Event {
                schema: SCHEMA,
                seq: first.seq.saturating_sub(1),
                wall_ns: first.wall_ns,
                mono_ns: first.mono_ns,
                subject: Subject::daemon(),
                what: What::Lost { events: missing },
            };
            push_line(&mut out, &loss);
        }
        out.extend_from_slice(&self.lines);
        out
    }
}

fn push_line(into: &mut Vec<u8>, event: &Event) {
    let before = into.len();
    match serde_json::to_writer(&mut *into, event) {
        Ok(()) => into.push(b'\n'),
        // Cannot happen for these types; half a line would be worse than none.
        Err(_) => into.truncate(before),
    }
}
