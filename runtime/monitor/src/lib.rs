//! The monitor's protocol and the parts it shares with `cairn-create` and the daemon.
//!
//! Pure: `codec`, `wire`, `record`, `process`, `filter`, `log`, `from_spec`, `terminal`. With
//! system calls, for single-threaded processes only: `sys`, `rooted`, `descendants`, `cgroup`,
//! `scheduling`, `tail`; for any process: `stat`, `cgroup_tree`, `mount_tree`, `log_path`.

pub mod cgroup;
pub mod cgroup_tree;
pub mod codec;
pub mod descendants;
pub mod filter;
#[cfg(feature = "spec")]
pub mod from_spec;
pub mod log;
pub mod log_path;
pub mod mount_tree;
pub mod own_file;
pub mod process;
pub mod record;
pub mod report;
pub mod rooted;
pub mod scheduling;
pub mod stat;
pub mod sys;
pub mod tail;
pub mod terminal;
pub mod wire;

/// The character devices of every container, with their numbers.
pub const DEFAULT_DEVICES: [(&str, (i64, i64)); 6] = [
    ("/dev/null", (1, 3)),
    ("/dev/zero", (1, 5)),
    ("/dev/full", (1, 7)),
    ("/dev/tty", (5, 0)),
    ("/dev/random", (1, 8)),
    ("/dev/urandom", (1, 9)),
];
