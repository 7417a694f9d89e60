//! Removal of everything that a container owns, except its directory.

use std::fs;
use std::io;

use cairn_monitor::cgroup::Cgroups;
use cairn_monitor::cgroup_tree::ignore_missing;
use cairn_monitor::descendants;
use cairn_monitor::own_file;
use cairn_monitor::record::{CTL, HOOK_PIDS, Pid};
use cairn_monitor::report::{CONSOLE, STATE};

/// Kills everything in the container's cgroups and everything below this process, which adopts
/// orphans: helpers and OCI hooks are not in the cgroups.
pub(crate) fn kill_everything(cgroups: &Cgroups) -> io::Result<()> {
    let killed = cgroups.kill_all();
    // A helper may have joined the cgroups meanwhile, and may have started init.
    if descendants::end_below(std::process::id() as i32)? {
        return cgroups.kill_all();
    }
    killed
}

/// Ends the OCI hooks of a lost monitor.
pub(crate) fn end_recorded_hooks() -> io::Result<()> {
    let mut ended = Ok(());
    for (_, file) in HOOK_PIDS {
        // Absent or cut off: the process had not begun, and died with the monitor.
        if let Some(helper) = own_file::read_to_string(file)
            .ok()
            .and_then(|text| Pid::from_text(&text).ok())
        {
            ended = ended.and(descendants::end_tree(&helper));
        }
    }
    ended
}

pub(crate) fn purge(cgroups: &Cgroups) -> io::Result<()> {
    kill_everything(cgroups)?;
    cgroups.remove_sessions()?;
    ignore_missing(fs::remove_dir_all(STATE))?;
    [CTL, CONSOLE]
        .into_iter()
        .try_for_each(|name| ignore_missing(fs::remove_file(name)))
}
