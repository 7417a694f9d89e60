//! Pure: turns OCI resources into cgroup writes, in an order that the kernel accepts. Current
//! values come through [`View`].
//!
//! `None` keeps the value (CRI-137). Devices are in `devices.rs`. Block I/O, network classes, RDMA
//! and bursts are absent, as `oci/` sets none of them (v2 takes them as `unified`).

use super::error::{Error, Result};
use super::host::Place;
use super::values::{is_page_size, max_or, parse_limit};
use oci_spec::runtime::{LinuxCpu, LinuxResources};

/// Facts about the cgroup for the planner.
pub(super) trait View {
    /// Name for messages.
    fn name(&self) -> &str;
    /// `None` if the host does not have the controller.
    fn place(&self, controller: &str) -> Option<Place<'_>>;
    /// The trimmed text of a file, `None` if it does not exist.
    fn current(&self, controller: &str, file: &str) -> Result<Option<String>>;
}

/// One value for one file in the directory of one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub controller: String,
    pub file: String,
    pub value: String,
}

/// All writes for `resources`; `unified` entries come last and therefore win (CRI-230).
///
/// # Errors
/// A needed controller is missing, a setting has no counterpart, or a value is invalid. Nothing has
/// been written then.
pub(super) fn plan(view: &dyn View, resources: &LinuxResources) -> Result<Vec<Change>> {
    let mut plan = Plan {
        view,
        changes: Vec::new(),
    };
    if let Some(memory) = resources.memory() {
        plan.memory(memory)?;
    }
    if let Some(cpu) = resources.cpu() {
        plan.cpu(cpu)?;
        plan.cpuset(cpu)?;
    }
    if let Some(pids) = resources.pids()
        && pids.limit() != 0
    {
        plan.place("pids", "pids limit")?;
        plan.set("pids", "pids.max", max_or(pids.limit()));
    }
    for limit in resources.hugepage_limits().iter().flatten() {
        plan.huge_pages(limit.page_size(), limit.limit())?;
    }
    let mut unified: Vec<_> = resources.unified().iter().flatten().collect();
    unified.sort();
    for (file, value) in unified {
        plan.verbatim(file, value)?;
    }
    Ok(plan.changes)
}

pub(super) struct Plan<'a> {
    pub(super) view: &'a dyn View,
    changes: Vec<Change>,
}

impl Plan<'_> {
    pub(super) fn set(&mut self, controller: &str, file: &str, value: impl ToString) {
        self.changes.push(Change {
            controller: controller.to_owned(),
            file: file.to_owned(),
            value: value.to_string(),
        });
    }

    pub(super) fn set_given(&mut self, controller: &str, file: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.set(controller, file, value);
        }
    }

    pub(super) fn place(&self, controller: &str, setting: &str) -> Result<Place<'_>> {
        let missing = || Error::no_controller(self.view.name(), setting, controller);
        self.view.place(controller).ok_or_else(missing)
    }

    pub(super) fn unsupported<T>(&self, setting: &str, why: &'static str) -> Result<T> {
        Err(Error::Unsupported {
            cgroup: self.view.name().to_owned(),
            setting: setting.to_owned(),
            why,
        })
    }

    pub(super) fn bad<T>(&self, setting: &str, value: &dyn ToString) -> Result<T> {
        Err(Error::BadValue {
            cgroup: self.view.name().to_owned(),
            setting: setting.to_owned(),
            value: value.to_string(),
        })
    }

    pub(super) fn current_number(&self, controller: &str, file: &str) -> Result<Option<u64>> {
        let text = self.view.current(controller, file)?;
        Ok(text.and_then(|t| parse_limit(&t)))
    }

    fn cpuset(&mut self, cpu: &LinuxCpu) -> Result<()> {
        let wanted = [("cpuset.cpus", cpu.cpus()), ("cpuset.mems", cpu.mems())];
        for (file, list) in wanted {
            let Some(list) = list.as_ref().filter(|list| !list.is_empty()) else {
                continue;
            };
            if list.len() > 4096
                || !list
                    .bytes()
                    .all(|b| b.is_ascii_digit() || b"-,:/".contains(&b))
            {
                return self.bad(file, list);
            }
            self.place("cpuset", "cpuset")?;
            self.set("cpuset", file, list);
        }
        Ok(())
    }

    /// CRI-231: the kubelet sends every page size, so that a missing controller is not an error.
    fn huge_pages(&mut self, page_size: &str, limit: i64) -> Result<()> {
        if !is_page_size(page_size) || limit < 0 {
            return self.bad("hugepage limit", &format!("{page_size}={limit}"));
        }
        let file = match self.view.place("hugetlb") {
            None => return Ok(()),
            Some(Place::V1(_)) => format!("hugetlb.{page_size}.limit_in_bytes"),
            Some(Place::V2(_)) => format!("hugetlb.{page_size}.max"),
        };
        // Nor is a limit of 0 for a page size that this machine lacks, or on hybrid before
        // delegation: only another limit enables the controller (`apply.rs`).
        if limit == 0 && self.view.current("hugetlb", &file)?.is_none() {
            return Ok(());
        }
        self.set("hugetlb", &file, limit);
        Ok(())
    }

    /// CRI-230: verbatim on v2, an error if the controller is not in the unified tree. The part
    /// before the first dot must be a controller, which excludes `cgroup.procs` and its like.
    fn verbatim(&mut self, file: &str, value: &str) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let controller = file.split('.').next().unwrap_or_default();
        if !file.chars().all(plain) || file.len() > 128 || value.len() > 4096 {
            return self.bad("unified", &file);
        }
        let why = match self.view.place(controller) {
            Some(Place::V2(_)) if file.len() > controller.len() => {
                self.set(controller, file, value);
                return Ok(());
            }
            Some(Place::V1(_)) => "the controller is on cgroup v1",
            _ => "no such controller on this host",
        };
        self.unsupported(&format!("unified {file}"), why)
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
