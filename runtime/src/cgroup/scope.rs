//! Makes, changes and ends cgroups with either driver; contains all that is specific to systemd.
//!
//! Limits, devices and `unified` values are written below the scope, where systemd writes nothing.
//! Weights compare siblings, so they are also set on the scope itself: as unit properties
//! ([`shares`]), because the next `daemon-reload` would overwrite a written value.

use super::error::{Error, Result};
use super::group::Cgroup;
use super::kill::{Backoff, wait_unpopulated};
use super::plan::{Change, plan};
use super::unit::{self, Scope};
use super::{group, io};
use crate::blocking::blocking;
use cairn_monitor::cgroup_tree::{self, is_gone};
use oci_spec::runtime::LinuxResources;
use tokio::time::Instant;

impl Cgroup {
    /// Makes the cgroup of a container or a pause, with its limits and device rules; below a slice,
    /// in a scope of its own. `id`: the container or pod.
    ///
    /// # Errors
    /// As [`Cgroup::create`] and [`Cgroup::apply`], or systemd refuses. The caller cleans up.
    pub async fn set_up(&self, id: &str, resources: Option<LinuxResources>) -> Result<()> {
        let scope = unit::scope_of(&self.path);
        let hold = match &scope {
            None => None,
            Some(scope) => Some(self.systemd_for(scope)?.start_scope(scope, id).await?),
        };
        let this = self.clone();
        let inner = scope.clone();
        let written = blocking(move || {
            if let (Some(scope), Some(hold)) = (&inner, hold) {
                this.move_hold(scope, hold)?;
            }
            this.create()?;
            let shares = this.shares(resources.as_ref())?;
            resources.map_or(Ok(()), |resources| this.apply(&resources))?;
            Ok(shares)
        });
        let shares = written.await?;
        self.set_shares(scope.as_ref(), &shares).await
    }

    /// Changes the limits of a running container; absent values stay.
    ///
    /// # Errors
    /// As [`Cgroup::apply`], or systemd refuses; limits are then as before. Ignores devices.
    pub async fn change(&self, resources: LinuxResources) -> Result<()> {
        let scope = unit::scope_of(&self.path);
        let this = self.clone();
        let written = blocking(move || {
            let shares = this.shares(Some(&resources))?;
            Ok((this.write_limits(&resources)?, shares))
        });
        let (undo, shares) = written.await?;
        let set = self.set_shares(scope.as_ref(), &shares).await;
        if set.is_err() {
            let this = self.clone();
            blocking(move || this.put_back(&undo)).await;
        }
        set
    }

    /// Makes the cgroup that exists as long as the pod: this leaf, which keeps the parent, or, if
    /// the parent is a slice, the slice. A pod's pause makes its scope itself.
    ///
    /// # Errors
    /// As [`Cgroup::create`], or systemd refuses.
    pub async fn hold_parent(&self, pod: &str) -> Result<()> {
        let Some(scope) = unit::scope_of(&self.path) else {
            let this = self.clone();
            return blocking(move || this.create()).await;
        };
        let Some(unified) = self.host.unified() else {
            return Err(not_here(&scope));
        };
        // From the top: each missing slice is started and marked as ours to stop, no other.
        let mut slices: Vec<_> =
            std::iter::successors(scope.path.parent(), |p| p.parent()).collect();
        slices.reverse();
        for slice in slices {
            let dir = slice.below(&unified.mount);
            if !dir.exists() {
                let systemd = self.systemd_for(&scope)?;
                let of = if slice.as_str().contains(pod) {
                    pod
                } else {
                    ""
                };
                if systemd.start_slice(unit::last(slice.as_str()), of).await? {
                    group::mark(&dir);
                }
            }
        }
        Ok(())
    }

    fn systemd_for(&self, scope: &Scope) -> Result<&super::systemd::Systemd> {
        self.host.systemd().ok_or_else(|| not_here(scope))
    }

    /// Moves it out of the scope itself: a cgroup with processes cannot delegate controllers.
    fn move_hold(&self, scope: &Scope, pid: u32) -> Result<()> {
        let Some(unified) = self.host.unified() else {
            return Err(not_here(scope));
        };
        let dir = scope.hold.below(&unified.mount);
        let moved = std::fs::create_dir(&dir)
            .and_then(|()| io::write(&dir.join("cgroup.procs"), &pid.to_string()));
        moved.map_err(|source| Error::io(dir, "move the process that keeps the scope", source))
    }

    fn shares(&self, resources: Option<&LinuxResources>) -> Result<Vec<(&'static str, u64)>> {
        match (unit::scope_of(&self.path), resources) {
            (Some(_), Some(resources)) => Ok(shares(&plan(self, resources)?)),
            _ => Ok(Vec::new()),
        }
    }

    async fn set_shares(
        &self,
        scope: Option<&Scope>,
        shares: &[(&'static str, u64)],
    ) -> Result<()> {
        match scope {
            Some(scope) if !shares.is_empty() => {
                self.systemd_for(scope)?.set(&scope.name, shares).await
            }
            _ => Ok(()),
        }
    }

    /// Ends the scope around this removed cgroup. Without an answer of systemd the scope's cgroup
    /// is removed too: systemd finds it empty later, or the next daemon ends it by name.
    pub(super) async fn end_scope(&self, deadline: Instant) -> Result<()> {
        let (Some(scope), Some(unified)) = (unit::scope_of(&self.path), self.host.unified()) else {
            return Ok(());
        };
        let dir = scope.path.below(&unified.mount);
        let mut backoff = Backoff::new(deadline);
        loop {
            match io::write(&dir.join("cgroup.kill"), "1") {
                Err(source) if !is_gone(&source) => {
                    return Err(Error::io(dir, "end the scope", source));
                }
                _ => {}
            }
            wait_unpopulated(&dir, deadline).await;
            let scope = dir.clone();
            match blocking(move || cgroup_tree::remove(&scope)).await {
                Ok(()) => break,
                Err(error) if cgroup_tree::is_busy(&error) && backoff.pause().await => {}
                Err(source) => return Err(Error::io(dir, "remove the scope", source)),
            }
        }
        // systemd notices an empty cgroup, but not always one that was removed before it looked.
        if let Some(systemd) = self.host.systemd()
            && let Err(error) = systemd.stop(&scope.name).await
        {
            tracing::warn!(%error, "cannot stop the systemd unit of a removed scope");
        }
        Ok(())
    }
}

/// The changes that are weighed against siblings, as unit properties (systemd.resource-control(5)).
fn shares(changes: &[Change]) -> Vec<(&'static str, u64)> {
    let number = |value: &str| match value.split_whitespace().last() {
        Some("max") => Some(u64::MAX),
        Some(number) => number.parse().ok(),
        None => None,
    };
    let share = |change: &Change| {
        let property = match change.file.as_str() {
            "cpu.weight" => "CPUWeight",
            "io.weight" if !change.value.contains(':') => "IOWeight",
            "memory.min" => "MemoryMin",
            "memory.low" => "MemoryLow",
            // systemd writes idle as a weight of 0. At the end of idle the kernel restores the
            // initial weight; a given weight comes later here and wins.
            "cpu.idle" if change.value == "1" => return Some(("CPUWeight", 0)),
            "cpu.idle" => return Some(("CPUWeight", 100)),
            _ => return None,
        };
        Some((property, number(&change.value)?))
    };
    changes.iter().filter_map(share).collect()
}

fn not_here(scope: &Scope) -> Error {
    Error::NotSystemd {
        parent: scope.slice.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(file: &str, value: &str) -> Change {
        Change {
            controller: file.split('.').next().unwrap_or_default().to_owned(),
            file: file.to_owned(),
            value: value.to_owned(),
        }
    }

    #[test]
    fn changes_weighed_against_siblings_become_unit_properties_and_bounds_do_not() {
        let changes = [
            change("cpu.weight", "20"),
            change("cpu.max", "50000 100000"),
            change("memory.max", "1000"),
            change("memory.low", "max"),
            change("memory.min", "4096"),
            change("pids.max", "10"),
            change("io.weight", "default 300"),
            change("io.weight", "8:0 100"),
            change("memory.oom.group", "1"),
        ];
        assert_eq!(
            shares(&changes),
            [
                ("CPUWeight", 20),
                ("MemoryLow", u64::MAX),
                ("MemoryMin", 4096),
                ("IOWeight", 300),
            ]
        );
        assert_eq!(shares(&[change("cpu.idle", "1")]), [("CPUWeight", 0)]);
        let ends = [change("cpu.idle", "0"), change("cpu.weight", "7")];
        assert_eq!(shares(&ends), [("CPUWeight", 100), ("CPUWeight", 7)]);
    }
}
