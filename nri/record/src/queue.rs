//! A bounded queue of events to write, with a count of the dropped ones.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use nri::wire::frame::Message;
use parking_lot::{Condvar, Mutex};

use super::line::Side;

/// Bytes that may wait to be written; as many again are being written.
pub(super) const BUDGET: usize = 16 << 20;
/// Bytes of an event beside its contents.
const OVERHEAD: usize = 256;

/// An event to write.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) connection: u64,
    pub(super) happened: Happened,
}

#[derive(Debug)]
pub(super) enum Happened {
    Opened,
    Message {
        from: Side,
        message: Message,
    },
    Unread {
        from: Side,
        why: String,
        bytes: Vec<u8>,
    },
    Closed {
        by: Option<Side>,
        why: String,
    },
    Dropped(u64),
}

impl Event {
    fn size(&self) -> usize {
        OVERHEAD
            + match &self.happened {
                Happened::Message { message, .. } => message.body.len(),
                Happened::Unread { bytes, .. } => bytes.len(),
                Happened::Opened | Happened::Closed { .. } | Happened::Dropped(_) => 0,
            }
    }
}

/// Filled by connections, drained by the writer thread. Connections never wait for that thread.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// Wakes the writer for new events, and the waiter for the end.
    changed: Condvar,
    /// The writer has stopped.
    over: AtomicBool,
    dropped: AtomicU64,
    began: Instant,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Event>,
    bytes: usize,
    ending: bool,
    ended: bool,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            began: Instant::now(),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn report(&self, connection: u64, happened: Happened) {
        if self.is_over() {
            return;
        }
        let event = Event {
            at: self.elapsed(),
            connection,
            happened,
        };
        self.waiting.lock().push(event, &self.dropped);
        self.changed.notify_all();
    }

    /// Rejects new events; queued ones are still written.
    pub(super) fn end(&self) {
        self.waiting.lock().ending = true;
        self.changed.notify_all();
    }

    /// For the writer: waits for events; returns them and whether they are the last.
    pub(super) fn take(&self) -> (VecDeque<Event>, bool) {
        let mut waiting = self.waiting.lock();
        while waiting.events.is_empty() && !waiting.ending {
            self.changed.wait(&mut waiting);
        }
        waiting.bytes = 0;
        (std::mem::take(&mut waiting.events), waiting.ending)
    }

    /// For the writer: it has stopped.
    pub(super) fn close(&self) {
        self.over.store(true, Ordering::Relaxed);
        *self.waiting.lock() = Waiting {
            ending: true,
            ended: true,
            ..Waiting::default()
        };
        self.changed.notify_all();
    }

    /// Waits until the writer has stopped; false at the limit.
    pub(super) fn await_close(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut waiting = self.waiting.lock();
        while !waiting.ended && !self.changed.wait_until(&mut waiting, deadline).timed_out() {}
        waiting.ended
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.waiting.lock().bytes
    }
}

impl Waiting {
    fn push(&mut self, event: Event, dropped: &AtomicU64) {
        if self.ending {
            return;
        }
        let size = event.size();
        if self.bytes + size <= BUDGET {
            self.bytes += size;
            self.events.push_back(event);
            return;
        }
        dropped.fetch_add(1, Ordering::Relaxed);
        match self.events.back_mut().map(|last| &mut last.happened) {
            Some(Happened::Dropped(lines)) => *lines += 1,
            // One such line, until the queue has room again.
            _ => self.events.push_back(Event {
                connection: 0,
                happened: Happened::Dropped(1),
                ..event
            }),
        }
    }
}

/// With microseconds, the best precision that the clocks of two hosts share.
pub(super) fn seconds(time: Duration) -> f64 {
    // Divided, so that no unneeded digits are written.
    time.as_micros() as f64 / 1e6
}
