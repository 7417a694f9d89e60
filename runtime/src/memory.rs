//! How the daemon's allocator keeps what was freed.
#![allow(unsafe_code)]

use std::time::Duration;

use tokio::{task, time};

/// Between two looks at how much is free.
const LOOK: Duration = Duration::from_secs(5);
/// Freed since the last time, and worth the walk over all that is allocated.
const WORTH: usize = 1 << 20;

/// glibc would keep an arena for each of many threads, and, once a large piece was freed, the next ones too: what 50 pulls
/// took at their worst moment, or one list of all metrics, stayed with the daemon. Called before there is any other thread.
pub fn bound_the_allocator() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 2),
        // Fixed, where they would grow with what was freed.
        (libc::M_MMAP_THRESHOLD, 128 << 10),
        (libc::M_TRIM_THRESHOLD, 128 << 10),
    ] {
        // SAFETY: no memory is passed; nobody else sets these, and there is one thread. A refusal changes nothing.
        let _ = unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives back the pages that lie free between what is allocated, which glibc by itself never does: without it the daemon
/// would stay as large as its most pods made it.
pub async fn give_freed_back() {
    let mut every = time::interval(LOOK);
    every.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut given = 0;
    loop {
        every.tick().await;
        let free = free_after(Trim::Nothing);
        // Free memory stays free for the allocator, also when its pages are gone.
        given = given.min(free);
        if free - given >= WORTH {
            let trimmed = task::spawn_blocking(|| free_after(Trim::All)).await;
            // A panic is impossible, and the runtime's end ends this too.
            given = trimmed.unwrap_or(free);
        }
    }
}

#[derive(PartialEq, Eq)]
enum Trim {
    Nothing,
    All,
}

/// Bytes that the allocator holds and nobody uses.
#[cfg(target_env = "gnu")]
fn free_after(trim: Trim) -> usize {
    // SAFETY: no memory is passed, and what is allocated stays where it is; both take the allocator's own locks.
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
