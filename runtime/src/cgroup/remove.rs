//! Removing a cgroup from all hierarchies, with the nested ones an exec or a container made.
//!
//! rmdir fails with EBUSY while a process is in it that is killed but not yet reaped. The unified
//! tree announces when it is empty; where there is none, the wait is a short doubling backoff.

use super::error::{Error, Result};
use super::group::Cgroup;
use super::host::{Hierarchy, Host};
use super::kill::{Backoff, wait_unpopulated};
use super::path::CgroupPath;
use super::{group, io, unit};
use crate::blocking::blocking;
use cairn_monitor::cgroup_tree;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

impl Cgroup {
    /// Removes the cgroup and everything nested in it from every hierarchy, then the parents that
    /// cairn itself made, as far as they are empty. Idempotent: what is not there is removed.
    ///
    /// # Errors
    /// `TimedOut` if a process is still in it after `wait`; kill first ([`Cgroup::kill_all`]).
    pub async fn remove(&self, wait: Duration) -> Result<()> {
        let deadline = Instant::now() + wait;
        let mut backoff = Backoff::new(deadline);
        loop {
            let dirs = self.dirs();
            let busy = blocking(move || remove_trees(dirs)).await?;
            if busy.is_empty() {
                self.end_scope(deadline).await?;
                self.remove_made_parents().await;
                return Ok(());
            }
            if let Some(unified) = self.unified_dir() {
                // Woken at once when the last process is gone; a zombie of v1 only is not seen here.
                wait_unpopulated(&unified, deadline).await;
            }
            if !backoff.pause().await {
                return Err(self.still_busy(wait, &busy));
            }
        }
    }

    fn still_busy(&self, after: Duration, busy: &[PathBuf]) -> Error {
        let first = busy.first().cloned().unwrap_or_default();
        let pids = io::read(&first.join("cgroup.procs")).unwrap_or_default();
        let (first, pids) = (first.display(), io::parse_pids(&pids).len());
        let left = format!("{first} is busy with {pids} processes");
        self.timed_out("remove", after, left)
    }

    /// Climbs up while the parent carries our mark and is empty everywhere. What a kill in the middle has left
    /// of a parent goes with the next child that is removed.
    async fn remove_made_parents(&self) {
        let scope = unit::scope_of(&self.path).map(|scope| scope.path);
        let first = scope.as_ref().unwrap_or(&self.path).parent();
        for parent in std::iter::successors(first, CgroupPath::parent) {
            if self.host.systemd().is_some() && unit::is_slice(parent.as_str()) {
                let unified = self.host.unified().map(|u| parent.below(&u.mount));
                if !unified.is_some_and(|dir| group::is_marked(&dir)) {
                    return;
                }
                let stopped = self.host.stop_slice(unit::last(parent.as_str())).await;
                if !matches!(stopped, Ok(true)) {
                    return;
                }
            } else if !self.remove_made_parent(&parent) {
                return;
            }
        }
    }

    /// False: it is not ours, or somebody is in it.
    fn remove_made_parent(&self, parent: &CgroupPath) -> bool {
        let remove_from = |tree: &Hierarchy| {
            let dir = parent.below(&tree.mount);
            match group::is_marked(&dir) {
                true => std::fs::remove_dir(&dir).is_ok(),
                false => !dir.exists(),
            }
        };
        // First: while it stands, nobody else's cgroup below it is hit.
        if self.host.unified().is_some_and(|tree| !remove_from(tree)) {
            return false;
        }
        let mut gone = true;
        for hierarchy in self.host.v1() {
            gone &= remove_from(hierarchy);
        }
        gone
    }
}

/// Those that are busy stay.
fn remove_trees(dirs: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut busy = Vec::new();
    for dir in dirs {
        match cgroup_tree::remove(&dir) {
            Ok(()) => {}
            Err(e) if cgroup_tree::is_busy(&e) => busy.push(dir),
            Err(source) => return Err(Error::io(dir, "remove", source)),
        }
    }
    Ok(busy)
}

impl Host {
    /// Stops a slice that nothing is in; false: something is.
    ///
    /// # Errors
    /// No name of a slice, or what systemd says.
    pub async fn stop_slice(&self, name: &str) -> Result<bool> {
        let (Some(systemd), Some(unified)) = (self.systemd(), self.unified()) else {
            return Ok(false);
        };
        let dir = unit::slice_path(name)?.below(&unified.mount);
        systemd.stop_slice_if(name, || has_no_children(&dir)).await
    }
}

/// No cgroup in it, and no process of its own: that would be one that we did not put there.
fn has_no_children(dir: &Path) -> bool {
    let populated = io::read(&dir.join("cgroup.events"))
        .is_ok_and(|events| events.lines().any(|line| line == "populated 1"));
    let is_dir = |e: std::fs::DirEntry| e.file_type().is_ok_and(|t| t.is_dir());
    let children = std::fs::read_dir(dir).map(|mut list| list.any(|e| e.is_ok_and(is_dir)));
    !populated && !children.unwrap_or(false)
}
