//! A memory limit that many calls share. A call charges its use as it grows, and releases the
//! charge at its end.

use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(super) struct Budget {
    bytes: usize,
    taken: AtomicUsize,
}

/// The share of a budget that one call uses.
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
    /// Changes the charge to this number of bytes. Returns false, and changes nothing, if the
    /// budget has too few bytes left.
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
