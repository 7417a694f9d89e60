//! Resets settings that child processes must not inherit: the raised limit of open files, and the
//! OOM score that protects the daemon.

#![expect(clippy::disallowed_methods, reason = "procfs")]

use std::{fs, sync::OnceLock};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// The limit at the daemon's start.
static GIVEN: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit of open files to its maximum: each container needs some. Called once, at start.
pub fn raise_open_files() {
    let given = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: given.maximum,
        maximum: given.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => {
            GIVEN.get_or_init(|| given);
        }
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
    }
}

/// Resets a new child to the original limit, and to no OOM protection. The usual limit of 1024
/// matters: old programs iterate over all descriptors, or support no more.
pub fn reset(child: u32) {
    let Some(pid) = child.try_into().ok().and_then(Pid::from_raw) else {
        return;
    };
    if let Some(given) = GIVEN.get() {
        // The child may have ended; no other error is possible for a child.
        let _ = prlimit(Some(pid), Resource::Nofile, *given);
    }
    let score = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    if score.trim().parse::<i32>().is_ok_and(|score| score < 0) {
        let _ = fs::write(format!("/proc/{child}/oom_score_adj"), "0");
    }
}
