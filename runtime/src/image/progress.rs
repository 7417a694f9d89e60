//! Progress of a pull or import.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared with readers; writers never wait.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    moved: AtomicU64,
    expected: AtomicU64,
}

impl Progress {
    /// Bytes of layers passed to the unpacker so far, and bytes announced.
    pub fn get(&self) -> (u64, u64) {
        (
            self.0.moved.load(Ordering::Relaxed),
            self.0.expected.load(Ordering::Relaxed),
        )
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn expect(&self, bytes: u64) {
        self.0.expected.fetch_add(bytes, Ordering::Relaxed);
    }
}
