//! Pure: OCI resources in, the list of cgroup writes out, in an order in which the kernel takes
//! them. What is there now is asked through [`View`]; nothing is written here.
//!
//! `None` in the resources means "leave as it is" (CRI-137). Devices are not here (`devices.rs`).

use super::error::{Error, Result};
use super::values::{is_page_size, max_or, parse_limit};
use oci_spec::runtime::{LinuxBlockIo, LinuxCpu, LinuxResources};

/// Which names a controller's files have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    V1,
    V2,
}

/// Facts about the cgroup for the planner.
pub trait View {
    /// For messages.
    fn name(&self) -> &str;
    /// `None` if the host does not have the controller.
    fn layout(&self, controller: &str) -> Option<Layout>;
    /// The trimmed text of a file, `None` if it does not exist.
    fn current(&self, controller: &str, file: &str) -> Result<Option<String>>;
}

/// One value for one file in the directory of one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub controller: String,
    pub file: String,
    pub value: String,
}

/// All writes for `resources`; `unified` entries come last and so win (CRI-230).
///
/// # Errors
/// A needed controller is missing, a setting has no counterpart here, or a value is senseless.
/// Nothing has been written then.
pub fn plan(view: &dyn View, resources: &LinuxResources) -> Result<Vec<Change>> {
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
        plan.layout("pids", "pids limit")?;
        plan.set("pids", "pids.max", max_or(pids.limit()));
    }
    if let Some(block_io) = resources.block_io() {
        plan.block_io(block_io)?;
    }
    for limit in resources.hugepage_limits().iter().flatten() {
        plan.huge_pages(limit.page_size(), limit.limit())?;
    }
    plan.refuse_the_rest(resources)?;
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

    pub(super) fn layout(&self, controller: &str, setting: &str) -> Result<Layout> {
        let missing = || Error::no_controller(self.view.name(), setting, controller);
        self.view.layout(controller).ok_or_else(missing)
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
            self.layout("cpuset", "cpuset")?;
            self.set("cpuset", file, list);
        }
        Ok(())
    }

    /// CRI-231: the kubelet names every page size, so a host without the controller is no error.
    fn huge_pages(&mut self, page_size: &str, limit: i64) -> Result<()> {
        if !is_page_size(page_size) || limit < 0 {
            return self.bad("hugepage limit", &format!("{page_size}={limit}"));
        }
        let file = match self.view.layout("hugetlb") {
            None => return Ok(()),
            Some(Layout::V1) => format!("hugetlb.{page_size}.limit_in_bytes"),
            Some(Layout::V2) => format!("hugetlb.{page_size}.max"),
        };
        // Also none: a page size that this machine has not, and hybrid without delegation, where
        // nothing but a limit of its own would have enabled the controller (`apply.rs`).
        if limit == 0 && self.view.current("hugetlb", &file)?.is_none() {
            return Ok(());
        }
        self.set("hugetlb", &file, limit);
        Ok(())
    }

    fn block_io(&mut self, io: &LinuxBlockIo) -> Result<()> {
        if *io == LinuxBlockIo::default() {
            return Ok(());
        }
        if io.leaf_weight().is_some() || io.weight_device().as_ref().is_some_and(|w| !w.is_empty())
        {
            return self.unsupported("block I/O leaf or device weight", "not implemented");
        }
        let v1 = self.view.layout("blkio").is_some();
        let controller = if v1 { "blkio" } else { "io" };
        if let Some(weight) = io.weight().filter(|w| *w != 0) {
            self.layout(controller, "block I/O weight")?;
            let files: [&str; 2] = if v1 {
                ["blkio.bfq.weight", "blkio.weight"]
            } else {
                ["io.bfq.weight", "io.weight"]
            };
            let mut there = files.into_iter();
            let found = loop {
                let Some(file) = there.next() else {
                    return self.unsupported(
                        "block I/O weight",
                        "no I/O scheduler on this host has weights",
                    );
                };
                if self.view.current(controller, file)?.is_some() {
                    break file;
                }
            };
            self.set(controller, found, weight);
        }
        let throttles = [
            (io.throttle_read_bps_device(), "read_bps", "rbps"),
            (io.throttle_write_bps_device(), "write_bps", "wbps"),
            (io.throttle_read_iops_device(), "read_iops", "riops"),
            (io.throttle_write_iops_device(), "write_iops", "wiops"),
        ];
        for (devices, v1_name, v2_name) in throttles {
            for device in devices.iter().flatten() {
                self.layout(controller, "block I/O limit")?;
                let (major, minor, rate) = (device.major(), device.minor(), device.rate());
                if v1 {
                    let file = format!("blkio.throttle.{v1_name}_device");
                    self.set(controller, &file, format!("{major}:{minor} {rate}"));
                } else {
                    let rate = if rate == 0 {
                        "max".to_owned()
                    } else {
                        rate.to_string()
                    };
                    let line = format!("{major}:{minor} {v2_name}={rate}");
                    self.set(controller, "io.max", line);
                }
            }
        }
        Ok(())
    }

    fn refuse_the_rest(&self, resources: &LinuxResources) -> Result<()> {
        if resources.rdma().as_ref().is_some_and(|r| !r.is_empty()) {
            return self.unsupported("rdma limit", "not implemented");
        }
        let network = resources.network().as_ref();
        let classed = network.is_some_and(|n| {
            n.class_id().is_some_and(|id| id != 0)
                || n.priorities().as_ref().is_some_and(|p| !p.is_empty())
        });
        if classed {
            return self.unsupported("network class or priority", "not implemented");
        }
        Ok(())
    }

    /// CRI-230: verbatim on v2, an error where the controller is not in the unified tree. The part
    /// before the first dot must be a controller, so `cgroup.procs` and its like are no settings.
    fn verbatim(&mut self, file: &str, value: &str) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let controller = file.split('.').next().unwrap_or_default();
        if !file.chars().all(plain) || file.len() > 128 || value.len() > 4096 {
            return self.bad("unified", &file);
        }
        match self.view.layout(controller) {
            Some(Layout::V2) if file.len() > controller.len() => {
                self.set(controller, file, value);
                Ok(())
            }
            Some(Layout::V1) => {
                let setting = format!("unified {file}");
                self.unsupported(&setting, "the controller is on cgroup v1")
            }
            _ => {
                let setting = format!("unified {file}");
                self.unsupported(&setting, "no such controller on this host")
            }
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
