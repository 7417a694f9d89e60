//! Events that could not be written: kept in order and bounded, shown to readers, and retried.

use std::{
    collections::VecDeque,
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{event::Event, files::Rotating};

/// Lines for one `write(2)`.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The first event's number.
    seq: u64,
    events: u64,
    lines: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Unwritten {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// Beyond this the oldest are lost.
    max_bytes: usize,
}

impl Batch {
    pub(super) fn push(&mut self, event: &Event) {
        if self.events == 0 {
            self.seq = event.seq;
        }
        self.events += 1;
        let before = self.lines.len();
        match serde_json::to_writer(&mut self.lines, event) {
            Ok(()) => self.lines.push(b'\n'),
            // Cannot happen for these types; a partial line would be worse.
            Err(_) => self.lines.truncate(before),
        }
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }
}

impl Unwritten {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            bytes: 0,
            max_bytes,
        }
    }

    pub(super) fn push(&mut self, batch: Batch) {
        self.bytes += batch.lines.len();
        self.batches.push_back(batch);
    }

    /// Writes as many as possible, oldest first.
    ///
    /// # Errors
    /// The reason for the first remaining batch.
    pub(super) fn write(&mut self, files: &mut Rotating) -> io::Result<()> {
        while let Some(batch) = self.batches.front() {
            files.append(batch.seq, &batch.lines)?;
            self.bytes -= batch.lines.len();
            self.batches.pop_front();
        }
        Ok(())
    }

    /// Drops the oldest beyond the limit, and counts them in `lost`.
    pub(super) fn bound(&mut self, lost: &AtomicU64) {
        while self.bytes > self.max_bytes
            && self.batches.len() > 1
            && let Some(oldest) = self.batches.pop_front()
        {
            self.bytes -= oldest.lines.len();
            lost.fetch_add(oldest.events, Ordering::Relaxed);
        }
    }

    pub(super) fn lines(&self) -> Vec<u8> {
        let batches = self.batches.iter();
        batches.flat_map(|batch| &batch.lines).copied().collect()
    }
}
