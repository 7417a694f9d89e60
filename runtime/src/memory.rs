//! Limits the memory that the daemon's allocator keeps after use.
#![allow(unsafe_code)]

use std::time::Duration;

use tokio::{task, time};

/// Interval of checks for free memory.
const LOOK: Duration = Duration::from_secs(5);
/// Freed bytes that are worth a walk over all allocations.
const WORTH: usize = 1 << 20;

/// Bounds glibc's arenas and free lists: it would keep an arena for each of many threads, and raise
/// its thresholds after large frees, so that the peak of 50 pulls, or of a list of all metrics,
/// would stay. Called before any other thread exists.
pub fn bound_the_allocator() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 2),
        // Setting a threshold keeps glibc from raising it.
        (libc::M_MMAP_THRESHOLD, 128 << 10),
        (libc::M_TRIM_THRESHOLD, 128 << 10),
    ] {
        // SAFETY: no memory is passed; only this code sets these, and there is one thread.
        let _ = unsafe { libc::mallopt(parameter, value) }; // a refusal changes nothing
    }
}

/// Returns free pages to the kernel. glibc never does between allocations: the daemon would not
/// shrink.
pub async fn give_freed_back() {
    let mut every = time::interval(LOOK);
    every.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut given = 0;
    loop {
        every.tick().await;
        let free = free_after(Trim::Nothing);
        // Memory returned to the kernel stays free for the allocator.
        given = given.min(free);
        if free - given >= WORTH {
            let trimmed = task::spawn_blocking(|| free_after(Trim::All)).await;
            // Fails only at the runtime's end.
            given = trimmed.unwrap_or(free);
        }
    }
}

#[derive(PartialEq, Eq)]
enum Trim {
    Nothing,
    All,
}

/// Bytes that the allocator has free.
#[cfg(target_env = "gnu")]
fn free_after(trim: Trim) -> usize {
    // SAFETY: no memory is passed, allocations stay in place; both take the allocator's locks.
    unsafe {
        if trim == Trim::All {
            libc::malloc_trim(0);
        }
        libc::mallinfo2().fordblks
    }
}

#[cfg(not(target_env = "gnu"))]
fn free_after(_: Trim) -> usize {
    0
}
