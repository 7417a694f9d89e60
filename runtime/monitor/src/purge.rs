//! Undoing all that a container has, but its directory.

use std::fs;
use std::io;

use cairn_monitor::cgroup::Cgroups;
use cairn_monitor::record::CTL;
use cairn_monitor::report::{CONSOLE, STATE};

/// Undoes everything but what the daemon made.
pub(crate) fn purge(cgroups: &Cgroups) -> io::Result<()> {
    cgroups.kill_all()?;
    cgroups.remove_sessions()?;
    match fs::remove_dir_all(STATE) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    for name in [CTL, CONSOLE] {
        match fs::remove_file(name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}
