//! What programs that the daemon starts would inherit of it and must not: its raised limit of open files, and an OOM score that
//! keeps it alive longer than what it serves.

#![expect(clippy::disallowed_methods, reason = "procfs")]

use std::{fs, sync::OnceLock};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// The limit that the daemon was started with.
static GIVEN: OnceLock<Rlimit> = OnceLock::new();

/// As many files as the daemon may have: each container costs it some. Once, at its start.
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
        Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
    }
}

/// Gives a child that has just been started what we were started with ourselves, and no protection from the OOM killer. A
/// shell's default of 1024 matters: programs that are older than larger limits go through all descriptors, or have room for
/// no more.
pub fn give_back(child: u32) {
    let Some(pid) = child.try_into().ok().and_then(Pid::from_raw) else {
        return;
    };
    if let Some(given) = GIVEN.get() {
        // It may have ended; others than our children we are not asked about.
        let _ = prlimit(Some(pid), Resource::Nofile, *given);
    }
    let score = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    if score.trim().parse::<i32>().is_ok_and(|score| score < 0) {
        let _ = fs::write(format!("/proc/{child}/oom_score_adj"), "0");
    }
}
