//! Events that the disk refused: they wait here, in order and bounded, are shown to readers meanwhile, and are written when
//! there is room again.

use std::{
    collections::VecDeque,
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{event::Event, files::Rotating};

/// Lines that are written by one `write(2)`.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Of the first event.
    seq: u64,
    events: u64,
    lines: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Unwritten {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// More than this, and the oldest are lost.
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
            // Cannot happen for these types; half a line would be worse than none.
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

    /// Writes what it can, oldest first.
    ///
    /// # Errors
    /// What the first batch that is still here was refused for.
    pub(super) fn write(&mut self, files: &mut Rotating) -> io::Result<()> {
        while let Some(batch) = self.batches.front() {
            files.append(batch.seq, &batch.lines)?;
            self.bytes -= batch.lines.len();
            self.batches.pop_front();
        }
        Ok(())
    }

    /// Drops the oldest of what is too much, and counts it in `lost`.
    pub(super) fn bound(&mut self, lost: &AtomicU64) {
        while self.bytes > self.max_bytes
            && self.batches.len() > 1
            && let Some(oldest) = self.batches.pop_front()
        {
            self.bytes -= oldest.lines.len();
            lost.fetch_add(oldest.events, Ordering::Relaxed);
        }
    }

    /// All lines, in order.
    pub(super) fn lines(&self) -> Vec<u8> {
        let batches = self.batches.iter();
        batches.flat_map(|batch| &batch.lines).copied().collect()
    }
}
