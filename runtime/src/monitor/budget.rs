//! A bound on memory that many calls share: each counts what it takes as it grows, and gives it back when it is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(super) struct Budget {
    bytes: usize,
    taken: AtomicUsize,
}

/// What one call has of a budget.
#[derive(Debug)]
pub struct Charge {
    budget: &'static Budget,
    taken: usize,
}

impl Budget {
    pub(super) const fn new(bytes: usize) -> Self {
        let taken = AtomicUsize::new(0);
        Self { bytes, taken }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn charge(&'static self) -> Charge {
        Charge {
            budget: self,
            taken: 0,
        }
    }
}

impl Charge {
    /// Takes or gives back what is between the old number of bytes and the new one. False, and nothing changed, where that is
    /// more than is left.
    pub(super) fn change_to(&mut self, bytes: usize) -> bool {
        let budget = self.budget;
        let changed = |all: usize| {
            let all = all - self.taken + bytes;
            (all <= budget.bytes || bytes <= self.taken).then_some(all)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let granted = budget.taken.fetch_update(set, fetch, changed).is_ok();
        if granted {
            self.taken = bytes;
        }
        granted
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}
