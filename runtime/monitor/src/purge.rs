//! Undoing all that a container has, but its directory.

use std::fs;
use std::io;

use cairn_monitor::cgroup::Cgroups;
use cairn_monitor::cgroup_tree::gone;
use cairn_monitor::record::CTL;
use cairn_monitor::report::{CONSOLE, STATE};

/// Undoes everything but what the daemon made.
pub(crate) fn purge(cgroups: &Cgroups) -> io::Result<()> {
    cgroups.kill_all()?;
    cgroups.remove_sessions()?;
    gone(fs::remove_dir_all(STATE))?;
    [CTL, CONSOLE]
        .into_iter()
        .try_for_each(|name| gone(fs::remove_file(name)))
}
