//! Removes a cgroup from all hierarchies, including those that an exec or a container made in it.
//!
//! rmdir fails with EBUSY until every killed process is reaped. The unified tree notifies when it
//! is empty; without that tree, the wait is a short doubling backoff.

use super::error::{Error, Result};
use super::group::Cgroup;
use super::host::{Hierarchy, Host};
use super::kill::{Backoff, wait_unpopulated};
use super::path::CgroupPath;
use super::{group, io, unit};
use crate::blocking::blocking;
use cairn_monitor::cgroup_tree;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

impl Cgroup {
    /// Removes the cgroup and all nested ones from every hierarchy, then the parents that cairn
    /// made, as far as they are empty. Idempotent: a missing cgroup counts as removed.
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
                // Wakes when the last process has ended; a zombie on v1 alone is not visible here.
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

    /// Removes parents upwards while they carry our mark and are empty everywhere. A parent that an
    /// interrupted removal left is removed with its next child.
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

    /// False if it is not ours, or in use.
    fn remove_made_parent(&self, parent: &CgroupPath) -> bool {
        let remove_from = |tree: &Hierarchy| {
            let dir = parent.below(&tree.mount);
            if group::is_marked(&dir) {
                // Another removal may have been faster: both go on with the next parent.
                std::fs::remove_dir(&dir)
                    .map_or_else(|e| e.kind() == ErrorKind::NotFound, |()| true)
            } else {
                !dir.exists()
            }
        };
        // Unified first: while it is in use, the v1 directories of its children stay untouched.
        if self.host.unified().is_some_and(|tree| !remove_from(tree)) {
            return false;
        }
        let mut removed = true;
        for hierarchy in self.host.v1() {
            removed &= remove_from(hierarchy);
        }
        removed
    }
}

/// Removes the trees; returns those that are busy.
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
    /// Stops a slice that is empty; false if it is not.
    ///
    /// # Errors
    /// The name is not a slice's, or systemd refuses.
    pub async fn stop_slice(&self, name: &str) -> Result<bool> {
        let (Some(systemd), Some(unified)) = (self.systemd(), self.unified()) else {
            return Ok(false);
        };
        let dir = unit::slice_path(name)?.below(&unified.mount);
        systemd.stop_slice_if(name, || has_no_children(&dir)).await
    }
}

/// Whether it has no cgroup and no process of its own, which would not be ours.
fn has_no_children(dir: &Path) -> bool {
    let populated = io::read(&dir.join("cgroup.events"))
        .is_ok_and(|events| events.lines().any(|line| line == "populated 1"));
    let is_dir = |e: std::fs::DirEntry| e.file_type().is_ok_and(|t| t.is_dir());
    let children = std::fs::read_dir(dir).map(|mut list| list.any(|e| e.is_ok_and(is_dir)));
    !populated && !children.unwrap_or(false)
}
