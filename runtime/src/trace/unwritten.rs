//! Events that the disk refused: they wait here, in order and bounded, are shown to readers meanwhile, and are written when
//! there is room again.

use std::{
    collections::VecDeque,
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    event::{Event, SCHEMA, Subject, What},
    files::Rotating,
};

/// Lines that are written by one `write(2)`.
#[derive(Debug, Default)]
pub struct Batch {
    /// Of the first event.
    seq: u64,
    times: (i64, u64),
    /// How many events should stand before the first one and do not.
    missing: u64,
    events: u64,
    lines: Vec<u8>,
}

#[derive(Debug)]
pub struct Unwritten {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// More than this, and the oldest are lost.
    max_bytes: usize,
}

impl Batch {
    pub fn push(&mut self, event: &Event) {
        if self.events == 0 {
            self.seq = event.seq;
            self.times = (event.wall_ns, event.mono_ns);
        }
        self.events += 1;
        push_line(&mut self.lines, event);
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    /// Tells that so many more are missing before these.
    pub fn lacks(&mut self, missing: u64) {
        self.missing += missing;
    }

    /// The lines, after one that tells how many are missing before them, if any. That line takes no number of its own: it
    /// has the number of the last one missing.
    fn to_lines(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.lines.len() + 128);
        if self.missing > 0 {
            let (wall_ns, mono_ns) = self.times;
            let loss = Event {
                schema: SCHEMA,
                seq: self.seq.saturating_sub(1),
                wall_ns,
                mono_ns,
                subject: Subject::daemon(),
                what: What::Lost {
                    events: self.missing,
                },
            };
            push_line(&mut out, &loss);
        }
        out.extend_from_slice(&self.lines);
        out
    }
}

impl Unwritten {
    pub fn new(max_bytes: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            bytes: 0,
            max_bytes,
        }
    }

    pub fn push(&mut self, batch: Batch) {
        self.bytes += batch.lines.len();
        self.batches.push_back(batch);
    }

    /// Writes what it can, oldest first.
    ///
    /// # Errors
    /// What the first batch that is still here was refused for.
    pub fn write(&mut self, files: &mut Rotating) -> io::Result<()> {
        while let Some(batch) = self.batches.front() {
            files.append(batch.seq, &batch.to_lines())?;
            self.bytes -= batch.lines.len();
            self.batches.pop_front();
        }
        Ok(())
    }

    /// Drops the oldest of what is too much, counts it in `lost`, and has the next batch tell it.
    pub fn bound(&mut self, lost: &AtomicU64) {
        while self.bytes > self.max_bytes
            && self.batches.len() > 1
            && let Some(oldest) = self.batches.pop_front()
        {
            self.bytes -= oldest.lines.len();
            lost.fetch_add(oldest.events, Ordering::Relaxed);
            if let Some(next) = self.batches.front_mut() {
                next.lacks(oldest.missing + oldest.events);
            }
        }
    }

    /// All lines, in order.
    pub fn lines(&self) -> Vec<u8> {
        self.batches.iter().flat_map(Batch::to_lines).collect()
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
