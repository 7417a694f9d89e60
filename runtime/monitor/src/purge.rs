//! Removal of everything that a container owns, except its directory.

use std::fs;
use std::io;

use cairn_monitor::cgroup::Cgroups;
use cairn_monitor::cgroup_tree::ignore_missing;
use cairn_monitor::record::CTL;
use cairn_monitor::report::{CONSOLE, STATE};

pub(crate) fn purge(cgroups: &Cgroups) -> io::Result<()> {
    cgroups.kill_all()?;
    cgroups.remove_sessions()?;
    ignore_missing(fs::remove_dir_all(STATE))?;
    [CTL, CONSOLE]
        .into_iter()
        .try_for_each(|name| ignore_missing(fs::remove_file(name)))
}
