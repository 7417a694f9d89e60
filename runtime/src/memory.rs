//! How the daemon's allocator keeps what was freed.
#![allow(unsafe_code)]

/// glibc would keep an arena for each of many threads, and, once a large piece was freed, the next ones too: what 50 pulls
/// took at their worst moment, or one list of all metrics, stayed with the daemon. Called before there is any other thread.
pub fn give_freed_memory_back() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 2),
        // Fixed, where they would grow with what was freed.
        (libc::M_MMAP_THRESHOLD, 128 << 10),
        (libc::M_TRIM_THRESHOLD, 128 << 10),
    ] {
        // SAFETY: no memory is passed; nobody else sets these, and there is one thread. A refusal changes nothing.
        let _only_a_wish = unsafe { libc::mallopt(parameter, value) };
    }
}
