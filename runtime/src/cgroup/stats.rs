//! Raw numbers of a cgroup, in one form for v1 and v2 (CRI-152). A file that is missing with its
//! controller or cgroup leaves its part `None`: one broken container must not fail a list
//! (CRI-150).

use super::error::Result;
use super::group::Cgroup;
use super::host::Place;
use super::io;
use super::open_files::OpenFiles;
use super::pressure_io::{IoDevice, Psi, parse_blkio, parse_io_stat, parse_psi};
use super::values::parse_cpu_max;
use std::path::Path;

/// Extent of a sample: each step reads more files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// The figures of ContainerStats: cpu and memory use, swap, pressure. Fields of [`Cpu`] and
    /// [`Memory`] from further v1 files are 0 or `None`.
    Usage,
    /// Also the number of tasks, for PodSandboxStats.
    Pod,
    /// Everything, for metrics.
    All,
}

/// One sample. Byte counts in bytes, times in ns unless noted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    pub cpu: Option<Cpu>,
    pub memory: Option<Memory>,
    pub swap: Option<Swap>,
    pub pids: Option<Pids>,
    pub psi: Pressure,
    pub hugepages: Vec<HugePages>,
    pub io: Vec<IoDevice>,
    pub limits: Limits,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    pub usage_ns: u64,
    pub user_ns: u64,
    pub system_ns: u64,
    /// CFS bandwidth: elapsed periods, throttled periods, and the throttled time.
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub usage: u64,
    /// `None` without a limit of its own.
    pub limit: Option<u64>,
    /// Highest usage, if the kernel records it (v2 since 5.19).
    pub max_usage: Option<u64>,
    /// How often the limit was hit.
    pub failcnt: u64,
    pub anon: u64,
    /// Page cache, and the part of it that is inactive or mapped.
    pub file: u64,
    pub inactive_file: u64,
    pub mapped_file: u64,
    pub kernel: u64,
    pub pgfault: u64,
    pub pgmajfault: u64,
    /// Processes killed here by the OOM killer.
    pub oom_kills: u64,
}

impl Memory {
    /// The kubelet's measure for eviction: usage without the inactive page cache, never below 0.
    pub fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swap {
    pub usage: u64,
    /// Swap alone, without memory. `None` if unlimited.
    pub limit: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pids {
    /// Tasks (threads), as the controller counts them.
    pub current: u64,
    pub limit: Option<u64>,
}

/// Pressure stall information, each `None` if the kernel does not record it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    pub cpu: Option<Psi>,
    pub memory: Option<Psi>,
    pub io: Option<Psi>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HugePages {
    /// `2MB`, `1GB`.
    pub page_size: String,
    pub usage: u64,
    /// v1 only.
    pub max_usage: Option<u64>,
}

/// Current limits; `None` means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub cpu_quota_us: Option<u64>,
    pub cpu_period_us: Option<u64>,
    /// v1 only; a v2 weight does not determine the shares that it came from.
    pub cpu_shares: Option<u64>,
    pub memory_reservation: Option<u64>,
}

impl Cgroup {
    /// One sample of this `detail`; never fails. Each number is read at its own moment. `files` are
    /// this cgroup's.
    pub fn stats(&self, detail: Detail, files: &mut OpenFiles) -> Stats {
        let mut stats = Stats::default();
        let all = detail == Detail::All;
        self.read_cpu(&mut stats, all, files);
        self.read_memory(&mut stats, all, files);
        if let Some(dir) = self.dir_of("pids").filter(|_| detail != Detail::Usage) {
            stats.pids = files.number(&dir, "pids.current").map(|current| Pids {
                current,
                limit: files.limit(&dir, "pids.max"),
            });
        }
        if let Some(dir) = self.unified_dir() {
            stats.psi = Pressure {
                cpu: files.text(&dir, "cpu.pressure").map(|t| parse_psi(&t)),
                memory: files.text(&dir, "memory.pressure").map(|t| parse_psi(&t)),
                io: files.text(&dir, "io.pressure").map(|t| parse_psi(&t)),
            };
        }
        if all {
            self.read_hugepages(&mut stats);
            self.read_io(&mut stats, files);
        }
        stats
    }

    /// CPU time so far in ns, by one small read: for rates. `None` if the cgroup does not exist.
    pub fn cpu_usage_ns(&self, files: &mut OpenFiles) -> Option<u64> {
        if let Some(Place::V1(mount)) = self.host.place("cpuacct") {
            return files.number(&self.path.below(mount), "cpuacct.usage");
        }
        let stat = files.text(&self.unified_dir()?, "cpu.stat")?;
        Some(field(&stat, "usage_usec")?.saturating_mul(1000))
    }

    fn read_io(&self, stats: &mut Stats, files: &mut OpenFiles) {
        stats.io = match (self.dir_of("blkio"), self.dir_of("io")) {
            (Some(v1), _) => parse_blkio(
                &files
                    .text(&v1, "blkio.throttle.io_service_bytes_recursive")
                    .unwrap_or_default(),
                &files
                    .text(&v1, "blkio.throttle.io_serviced_recursive")
                    .unwrap_or_default(),
            ),
            (None, Some(v2)) => parse_io_stat(&files.text(&v2, "io.stat").unwrap_or_default()),
            (None, None) => Vec::new(),
        };
    }

    /// Processes that the OOM killer has killed in this cgroup so far (CRI-144). Read it at the
    /// exit, before the cgroup is removed: the kernel counts synchronously and sends no event.
    ///
    /// # Errors
    /// `Io` if the counter exists but cannot be read. Without a memory controller it is 0.
    pub fn oom_kills(&self) -> Result<u64> {
        let (dir, file) = match self.host.place("memory") {
            Some(Place::V1(mount)) => (self.path.below(mount), "memory.oom_control"),
            Some(Place::V2(mount)) => (self.path.below(mount), "memory.events"),
            None => return Ok(0),
        };
        let text = io::read_if_there(&dir.join(file))?.unwrap_or_default();
        Ok(field(&text, "oom_kill").unwrap_or(0))
    }

    fn read_cpu(&self, stats: &mut Stats, all: bool, files: &mut OpenFiles) {
        // v1: usage from cpuacct, throttling from cpu. Every host has usage in the unified tree,
        // but on hybrid only of processes that started in it.
        if let Some(Place::V1(mount)) = self.host.place("cpuacct") {
            let acct = self.path.below(mount);
            let Some(usage_ns) = files.number(&acct, "cpuacct.usage") else {
                return;
            };
            let mut cpu = Cpu {
                usage_ns,
                ..Cpu::default()
            };
            if let Some(dir) = self.dir_of("cpu").filter(|_| all) {
                cpu.user_ns = files.number(&acct, "cpuacct.usage_user").unwrap_or(0);
                cpu.system_ns = files.number(&acct, "cpuacct.usage_sys").unwrap_or(0);
                let stat = files.text(&dir, "cpu.stat").unwrap_or_default();
                cpu.periods = field(&stat, "nr_periods").unwrap_or(0);
                cpu.throttled_periods = field(&stat, "nr_throttled").unwrap_or(0);
                cpu.throttled_ns = field(&stat, "throttled_time").unwrap_or(0);
                stats.limits.cpu_quota_us = files.limit(&dir, "cpu.cfs_quota_us");
                stats.limits.cpu_period_us = files.number(&dir, "cpu.cfs_period_us");
                stats.limits.cpu_shares = files.number(&dir, "cpu.shares");
            }
            stats.cpu = Some(cpu);
        } else if let Some(dir) = self.unified_dir() {
            let Some(stat) = files.text(&dir, "cpu.stat") else {
                return;
            };
            let micros = |name| field(&stat, name).unwrap_or(0).saturating_mul(1000);
            stats.cpu = Some(Cpu {
                usage_ns: micros("usage_usec"),
                user_ns: micros("user_usec"),
                system_ns: micros("system_usec"),
                periods: field(&stat, "nr_periods").unwrap_or(0),
                throttled_periods: field(&stat, "nr_throttled").unwrap_or(0),
                throttled_ns: micros("throttled_usec"),
            });
            if all {
                let max = files.text(&dir, "cpu.max");
                let max = max.and_then(|t| parse_cpu_max(&t));
                stats.limits.cpu_quota_us = max.and_then(|(quota, _)| quota);
                stats.limits.cpu_period_us = max.map(|(_, period)| period);
            }
        }
    }

    fn read_memory(&self, stats: &mut Stats, all: bool, files: &mut OpenFiles) {
        match self.host.place("memory") {
            Some(Place::V1(mount)) => read_memory_v1(&self.path.below(mount), stats, all, files),
            Some(Place::V2(mount)) => read_memory_v2(&self.path.below(mount), stats, all, files),
            None => {}
        }
    }

    fn read_hugepages(&self, stats: &mut Stats) {
        let Some(place) = self.host.place("hugetlb") else {
            return;
        };
        let (mount, ending) = match place {
            Place::V1(mount) => (mount, ".usage_in_bytes"),
            Place::V2(mount) => (mount, ".current"),
        };
        let dir = self.path.below(mount);
        let Ok(entries) = std::fs::read_dir(&dir) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let page_size = name
                .to_str()
                .and_then(|n| n.strip_prefix("hugetlb.")?.strip_suffix(ending))
                .filter(|size| !size.contains('.'));
            let Some(page_size) = page_size else { continue };
            let Some(usage) = number(&dir, &format!("hugetlb.{page_size}{ending}")) else {
                continue;
            };
            stats.hugepages.push(HugePages {
                page_size: page_size.to_owned(),
                usage,
                max_usage: number(&dir, &format!("hugetlb.{page_size}.max_usage_in_bytes")),
            });
        }
        stats
            .hugepages
            .sort_by(|a, b| a.page_size.cmp(&b.page_size));
    }
}

fn read_memory_v1(dir: &Path, stats: &mut Stats, all: bool, files: &mut OpenFiles) {
    let Some(usage) = files.number(dir, "memory.usage_in_bytes") else {
        return;
    };
    let stat = files.text(dir, "memory.stat").unwrap_or_default();
    let get = |name| field(&stat, name).unwrap_or(0);
    let own_limit = files.limit(dir, "memory.limit_in_bytes");
    let mut memory = Memory {
        usage,
        limit: own_limit,
        anon: get("total_rss"),
        file: get("total_cache"),
        inactive_file: get("total_inactive_file"),
        mapped_file: get("total_mapped_file"),
        pgfault: get("total_pgfault"),
        pgmajfault: get("total_pgmajfault"),
        ..Memory::default()
    };
    if all {
        let oom = files.text(dir, "memory.oom_control").unwrap_or_default();
        memory.oom_kills = field(&oom, "oom_kill").unwrap_or(0);
        memory.max_usage = files.number(dir, "memory.max_usage_in_bytes");
        memory.failcnt = files.number(dir, "memory.failcnt").unwrap_or(0);
        memory.kernel = files.number(dir, "memory.kmem.usage_in_bytes").unwrap_or(0);
        stats.limits.memory_reservation = files.limit(dir, "memory.soft_limit_in_bytes");
    }
    stats.memory = Some(memory);
    // memsw is memory and swap together. Without swap accounting that file is missing, and the line
    // in memory.stat too.
    stats.swap = field(&stat, "total_swap").map(|usage| {
        let both = files.limit(dir, "memory.memsw.limit_in_bytes");
        Swap {
            usage,
            limit: both.map(|both| both.saturating_sub(own_limit.unwrap_or(both))),
        }
    });
}

fn read_memory_v2(dir: &Path, stats: &mut Stats, all: bool, files: &mut OpenFiles) {
    let Some(usage) = files.number(dir, "memory.current") else {
        return;
    };
    let stat = files.text(dir, "memory.stat").unwrap_or_default();
    let get = |name| field(&stat, name).unwrap_or(0);
    let mut memory = Memory {
        usage,
        limit: files.limit(dir, "memory.max"),
        anon: get("anon"),
        file: get("file"),
        inactive_file: get("inactive_file"),
        mapped_file: get("file_mapped"),
        kernel: get("kernel"),
        pgfault: get("pgfault"),
        pgmajfault: get("pgmajfault"),
        ..Memory::default()
    };
    if all {
        let events = files.text(dir, "memory.events").unwrap_or_default();
        memory.oom_kills = field(&events, "oom_kill").unwrap_or(0);
        memory.failcnt = field(&events, "max").unwrap_or(0);
        memory.max_usage = files.number(dir, "memory.peak");
        stats.limits.memory_reservation = files.limit(dir, "memory.low").filter(|low| *low > 0);
    }
    stats.memory = Some(memory);
    stats.swap = files.number(dir, "memory.swap.current").map(|usage| Swap {
        usage,
        limit: files.limit(dir, "memory.swap.max"),
    });
}

/// A number in a file whose name depends on the machine.
fn number(dir: &Path, file: &str) -> Option<u64> {
    io::read(&dir.join(file)).ok()?.trim().parse().ok()
}

/// The value after `name` in a file of `name value` lines.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok()).flatten()
    })
}
