//! Pure: OCI resources in, the list of cgroup writes out, in an order in which the kernel takes
//! them. What is there now is asked through [`View`]; nothing is written here.
//!
//! `None` in the resources means "leave as it is" (CRI-137). Devices are not here (`devices.rs`).

use super::values::{is_page_size, max_or, parse_limit, weight_from_shares};
use super::{Error, Result};
use oci_spec::runtime::{LinuxBlockIo, LinuxCpu, LinuxMemory, LinuxResources};

/// Which names a controller's files have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    V1,
    V2,
}

/// What the planner may ask about the cgroup.
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

struct Plan<'a> {
    view: &'a dyn View,
    changes: Vec<Change>,
}

impl Plan<'_> {
    fn set(&mut self, controller: &str, file: &str, value: impl ToString) {
        self.changes.push(Change {
            controller: controller.to_owned(),
            file: file.to_owned(),
            value: value.to_string(),
        });
    }

    fn layout(&self, controller: &str, setting: &'static str) -> Result<Layout> {
        let missing = || Error::NoController {
            cgroup: self.view.name().to_owned(),
            setting,
            controller: controller.to_owned(),
        };
        self.view.layout(controller).ok_or_else(missing)
    }

    fn unsupported<T>(&self, setting: &str, why: &'static str) -> Result<T> {
        Err(Error::Unsupported {
            cgroup: self.view.name().to_owned(),
            setting: setting.to_owned(),
            why,
        })
    }

    fn bad<T>(&self, setting: &str, value: &dyn ToString) -> Result<T> {
        Err(Error::BadValue {
            cgroup: self.view.name().to_owned(),
            setting: setting.to_owned(),
            value: value.to_string(),
        })
    }

    fn current_number(&self, controller: &str, file: &str) -> Result<Option<u64>> {
        let text = self.view.current(controller, file)?;
        Ok(text.and_then(|t| parse_limit(&t)))
    }

    fn memory(&mut self, memory: &LinuxMemory) -> Result<()> {
        if *memory == LinuxMemory::default() {
            return Ok(());
        }
        let layout = self.layout("memory", "memory limit")?;
        if memory.check_before_update() == Some(true)
            && let Some(limit) = memory.limit().filter(|l| *l >= 0)
        {
            self.refuse_below_usage(layout, limit.unsigned_abs())?;
        }
        if memory.use_hierarchy() == Some(false) {
            return self.unsupported("memory without hierarchy", "kernels no longer have it");
        }
        match layout {
            Layout::V1 => self.memory_v1(memory),
            Layout::V2 => self.memory_v2(memory),
        }
    }

    fn refuse_below_usage(&self, layout: Layout, limit: u64) -> Result<()> {
        let file = match layout {
            Layout::V1 => "memory.usage_in_bytes",
            Layout::V2 => "memory.current",
        };
        match self.current_number("memory", file)? {
            Some(used) if used > limit => self.bad("memory limit below what is in use", &limit),
            _ => Ok(()),
        }
    }

    /// The kernel holds `memsw >= limit` at each single write, so the order follows from where the
    /// new limit lies relative to today's memsw. Without swap accounting there is no memsw file and
    /// the swap part is left out.
    fn memory_v1(&mut self, memory: &LinuxMemory) -> Result<()> {
        const LIMIT: &str = "memory.limit_in_bytes";
        const MEMSW: &str = "memory.memsw.limit_in_bytes";
        let has_memsw = self.view.current("memory", MEMSW)?.is_some();
        let limit_now = self.current_number("memory", LIMIT)?;
        let memsw_now = self.current_number("memory", MEMSW)?;
        let limit = memory.limit();
        let no_room = |limit: i64| above(limit, memsw_now);
        let swap = match (memory.swap(), limit) {
            _ if !has_memsw => None,
            (Some(swap), Some(limit)) if above(limit, swap_bytes(swap)) => {
                return self.bad("memory+swap limit below the memory limit", &swap);
            }
            (Some(swap), _) => Some(swap),
            // Only the limit was given: "no swap" stays so, and memsw is never below the limit.
            (None, Some(limit)) => {
                let no_swap = limit_now.is_some() && memsw_now == limit_now;
                (no_swap || no_room(limit)).then_some(limit)
            }
            (None, None) => None,
        };
        let swap_first = limit.is_some_and(no_room);
        if let Some(swap) = swap.filter(|_| swap_first) {
            self.set("memory", MEMSW, swap);
        }
        if let Some(limit) = limit {
            self.set("memory", LIMIT, limit);
        }
        if let Some(swap) = swap.filter(|_| !swap_first) {
            self.set("memory", MEMSW, swap);
        }
        if let Some(reservation) = memory.reservation() {
            self.set("memory", "memory.soft_limit_in_bytes", reservation);
        }
        if let Some(tcp) = memory.kernel_tcp() {
            self.set("memory", "memory.kmem.tcp.limit_in_bytes", tcp);
        }
        if let Some(swappiness) = memory.swappiness() {
            self.set("memory", "memory.swappiness", swappiness);
        }
        if let Some(disabled) = memory.disable_oom_killer() {
            self.set("memory", "memory.oom_control", u8::from(disabled));
        }
        Ok(())
    }

    /// OCI's swap is memory plus swap; v2 wants the swap alone.
    fn memory_v2(&mut self, memory: &LinuxMemory) -> Result<()> {
        const SWAP: &str = "memory.swap.max";
        if memory.disable_oom_killer() == Some(true) {
            return self.unsupported("disabled OOM killer", "cgroup v2 has no such switch");
        }
        if memory.swappiness().is_some() {
            return self.unsupported("memory swappiness", "cgroup v2 has none per cgroup");
        }
        let swap = match (memory.swap(), memory.limit()) {
            (None, _) => None,
            (Some(swap), _) if swap < 0 => Some("max".to_owned()),
            (Some(swap), limit) => {
                let limit = match limit {
                    Some(limit) => swap_bytes(limit),
                    None => self.current_number("memory", "memory.max")?,
                };
                match limit.and_then(|limit| swap.unsigned_abs().checked_sub(limit)) {
                    Some(alone) => Some(alone.to_string()),
                    None => return self.bad("memory+swap limit below the memory limit", &swap),
                }
            }
        };
        if let Some(limit) = memory.limit() {
            self.set("memory", "memory.max", max_or(limit));
        }
        // A host without swap accounting has nothing to limit.
        if let Some(swap) = swap
            && self.view.current("memory", SWAP)?.is_some()
        {
            self.set("memory", SWAP, swap);
        }
        if let Some(reservation) = memory.reservation() {
            self.set("memory", "memory.low", max_or(reservation));
        }
        Ok(())
    }

    fn cpu(&mut self, cpu: &LinuxCpu) -> Result<()> {
        let bare = cpu.shares().is_none()
            && cpu.quota().is_none()
            && cpu.period().is_none()
            && cpu.burst().is_none()
            && cpu.idle().is_none()
            && cpu.realtime_runtime().is_none()
            && cpu.realtime_period().is_none();
        if bare {
            return Ok(());
        }
        match self.layout("cpu", "cpu limit")? {
            Layout::V1 => self.cpu_v1(cpu),
            Layout::V2 => self.cpu_v2(cpu),
        }
    }

    fn cpu_v1(&mut self, cpu: &LinuxCpu) -> Result<()> {
        if let Some(shares) = cpu.shares().filter(|s| *s != 0) {
            self.set("cpu", "cpu.shares", shares);
        }
        if let Some(period) = cpu.realtime_period() {
            self.set("cpu", "cpu.rt_period_us", period);
        }
        if let Some(runtime) = cpu.realtime_runtime() {
            self.set("cpu", "cpu.rt_runtime_us", runtime);
        }
        let quota = cpu.quota().filter(|q| *q != 0);
        let period = cpu.period().filter(|p| *p != 0);
        let period_first = match (quota, period) {
            (Some(quota), Some(period)) => self.period_goes_first(quota, period)?,
            _ => false,
        };
        if let Some(period) = period.filter(|_| period_first) {
            self.set("cpu", "cpu.cfs_period_us", period);
        }
        if let Some(quota) = quota {
            self.set("cpu", "cpu.cfs_quota_us", quota);
        }
        if let Some(period) = period.filter(|_| !period_first) {
            self.set("cpu", "cpu.cfs_period_us", period);
        }
        if let Some(burst) = cpu.burst() {
            self.set("cpu", "cpu.cfs_burst_us", burst);
        }
        if let Some(idle) = cpu.idle() {
            self.set("cpu", "cpu.idle", idle);
        }
        Ok(())
    }

    /// The kernel refuses quota/period above the parent's at each single write. Of the two states
    /// in between, old quota with new period and new quota with old period, the lesser ratio is at
    /// most the greater of the ratios before and after, both of which are allowed. An unlimited
    /// quota is always allowed, so the period moves while the quota is unlimited.
    fn period_goes_first(&self, quota: i64, period: u64) -> Result<bool> {
        let now = |file| self.current_number("cpu", file);
        let Some(quota_now) = now("cpu.cfs_quota_us")? else {
            return Ok(true);
        };
        let Ok(quota) = u64::try_from(quota) else {
            return Ok(false);
        };
        let period_now = now("cpu.cfs_period_us")?.unwrap_or(100_000);
        // quota_now / period <= quota / period_now, without dividing.
        let with_new_period = u128::from(quota_now) * u128::from(period_now);
        Ok(with_new_period <= u128::from(quota) * u128::from(period))
    }

    fn cpu_v2(&mut self, cpu: &LinuxCpu) -> Result<()> {
        if cpu.realtime_runtime().is_some() || cpu.realtime_period().is_some() {
            return self.unsupported("realtime cpu limit", "cgroup v2 has none");
        }
        // An idle cgroup takes no weight, so idle is left first and entered last.
        if let Some(idle) = cpu.idle().filter(|idle| *idle == 0) {
            self.set("cpu", "cpu.idle", idle);
        }
        if let Some(weight) = cpu.shares().and_then(weight_from_shares) {
            self.set("cpu", "cpu.weight", weight);
        }
        let quota = cpu.quota().filter(|q| *q != 0).map(max_or);
        let period = cpu.period().filter(|p| *p != 0);
        let max = match (quota, period) {
            (None, None) => None,
            // The kernel keeps the period when only the quota is written.
            (Some(quota), None) => Some(quota),
            (Some(quota), Some(period)) => Some(format!("{quota} {period}")),
            (None, Some(period)) => {
                let now = self.view.current("cpu", "cpu.max")?.unwrap_or_default();
                let quota = now.split_whitespace().next().unwrap_or("max").to_owned();
                Some(format!("{quota} {period}"))
            }
        };
        if let Some(max) = max {
            self.set("cpu", "cpu.max", max);
        }
        if let Some(burst) = cpu.burst() {
            self.set("cpu", "cpu.max.burst", burst);
        }
        if let Some(idle) = cpu.idle().filter(|idle| *idle != 0) {
            self.set("cpu", "cpu.idle", idle);
        }
        Ok(())
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
                    return self.unsupported("block I/O weight", "no scheduler here has weights");
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

/// A limit in bytes, `None` if negative, that is unlimited.
fn swap_bytes(limit: i64) -> Option<u64> {
    u64::try_from(limit).ok()
}

/// Whether `limit` (negative: unlimited) lies above `bound` (`None`: unlimited).
fn above(limit: i64, bound: Option<u64>) -> bool {
    match (u64::try_from(limit), bound) {
        (_, None) => false,
        (Err(_), Some(_)) => true,
        (Ok(limit), Some(bound)) => limit > bound,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
