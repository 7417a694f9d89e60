//! In the product.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Returns the work.
///
/// # Errors
/// Always: the caller runs the work.
#[inline(always)]
pub async fn in_line<T, W: FnOnce() -> T>(work: W) -> Result<T, W> {
    Err(work)
}

#[inline(always)]
pub fn fill(_: &mut [u8]) -> bool {
    false
}

#[inline(always)]
pub fn limit(_: &str, usual: usize) -> usize {
    usual
}

/// What a run makes of a place in the code (`fault.rs`).
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    Waits(Duration),
    Fails,
}

#[inline(always)]
pub fn fate(_: &str) -> Option<Fate> {
    None
}

pub struct Span;

impl Span {
    #[inline(always)]
    pub fn begin(_: &str) -> Self {
        Self
    }
}

#[inline(always)]
pub fn before_change(_: &Path) {}

#[inline(always)]
pub fn on_disk(_: &BTreeSet<PathBuf>) {}

#[inline(always)]
pub fn write_kernel(_: &Path, _: &str) -> Option<io::Result<()>> {
    None
}

#[inline(always)]
pub fn read_kernel(_: &Path) -> Option<String> {
    None
}
