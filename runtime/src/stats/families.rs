//! The metrics of CRI-158: names, help, extra labels, and how to read them. Pure.

use super::reading::{Container, Pod, Reading};
use crate::cgroup::{HugePages, IoDevice, Psi};
use proto_cri::v1::MetricType;

/// The first labels of every metric.
pub(super) const LABELS: [&str; 5] = ["pod", "namespace", "container", "id", "image"];

/// The source of a family's numbers.
pub(super) enum Source {
    Container(fn(&Container<'_>) -> Vec<Reading>),
    /// A pod: its network.
    Pod(fn(&Pod<'_>) -> Vec<Reading>),
}

pub(super) struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricType,
    /// Labels after the common ones.
    pub labels: &'static [&'static str],
    pub source: Source,
}

const NS: u64 = 1_000_000_000;

/// One number without extra labels; no sample if unknown.
fn one(value: Option<u64>) -> Vec<Reading> {
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

macro_rules! container {
    ($name:literal, $kind:ident, $help:literal, [$($label:literal),*], $read:expr) => {
        Family {
            name: concat!("container_", $name),
            help: $help,
            kind: MetricType::$kind,
            labels: &[$($label),*],
            source: Source::Container($read),
        }
    };
    ($name:literal, $kind:ident, $help:literal, $read:expr) => {
        container!($name, $kind, $help, [], |c| one($read(c)))
    };
}

macro_rules! network {
    ($name:literal, $help:literal, $field:ident) => {
        Family {
            name: concat!("container_network_", $name, "_total"),
            help: $help,
            kind: MetricType::Counter,
            labels: &["interface"],
            source: Source::Pod(|pod| {
                let others = pod.interfaces.iter().filter(|i| i.name != "lo");
                others
                    .map(|i| (vec![i.name.clone()], i.counters.$field))
                    .collect()
            }),
        }
    };
}

type C<'a, 'b> = &'a Container<'b>;

/// All advertised metrics. A value that this kernel lacks gives no sample where critest allows that
/// (hugetlb, pressure, quota, reservation, ulimits, I/O), otherwise the nearest true number.
#[rustfmt::skip]
pub(super) static FAMILIES: &[Family] = &[
    // cpu
    container!("cpu_usage_seconds_total", Counter, "CPU time used, in seconds.",
        |c: C| c.stats.cpu.map(|cpu| cpu.usage_ns / NS)),
    container!("cpu_user_seconds_total", Counter, "CPU time used in user mode, in seconds.",
        |c: C| c.stats.cpu.map(|cpu| cpu.user_ns / NS)),
    container!("cpu_system_seconds_total", Counter, "CPU time used in the kernel, in seconds.",
        |c: C| c.stats.cpu.map(|cpu| cpu.system_ns / NS)),
    container!("cpu_cfs_periods_total", Counter, "Periods of CPU bandwidth control that have passed.",
        |c: C| c.stats.cpu.map(|cpu| cpu.periods)),
    container!("cpu_cfs_throttled_periods_total", Counter, "Periods in which the container was throttled.",
        |c: C| c.stats.cpu.map(|cpu| cpu.throttled_periods)),
    container!("cpu_cfs_throttled_seconds_total", Counter, "Time for which it was throttled, in seconds.",
        |c: C| c.stats.cpu.map(|cpu| cpu.throttled_ns / NS)),
    // memory
    container!("memory_cache", Gauge, "Page cache in bytes.",
        |c: C| c.stats.memory.map(|m| m.file)),
    container!("memory_rss", Gauge, "Anonymous memory in bytes.",
        |c: C| c.stats.memory.map(|m| m.anon)),
    container!("memory_kernel_usage", Gauge, "Memory of the kernel for it, in bytes.",
        |c: C| c.stats.memory.map(|m| m.kernel)),
    container!("memory_mapped_file", Gauge, "Mapped files in bytes.",
        |c: C| c.stats.memory.map(|m| m.mapped_file)),
    container!("memory_swap", Gauge, "Swap used, in bytes.",
        |c: C| c.stats.memory.map(|_| c.stats.swap.map_or(0, |swap| swap.usage))),
    container!("memory_failcnt", Counter, "How often the memory limit was hit.",
        |c: C| c.stats.memory.map(|m| m.failcnt)),
    container!("memory_usage_bytes", Gauge, "Memory used, with all of the cache, in bytes.",
        |c: C| c.stats.memory.map(|m| m.usage)),
    // Without the kernel's peak, the present use is the largest known.
    container!("memory_max_usage_bytes", Gauge, "Most memory used so far, in bytes.",
        |c: C| c.stats.memory.map(|m| m.max_usage.unwrap_or(m.usage))),
    container!("memory_working_set_bytes", Gauge, "Memory used without inactive cache, in bytes.",
        |c: C| c.stats.memory.map(|m| m.working_set())),
    container!("memory_failures_total", Counter, "Page faults.", ["failure_type", "scope"],
        page_faults),
    container!("oom_events_total", Counter, "Processes killed by the OOM killer.",
        |c: C| c.stats.memory.map(|m| m.oom_kills)),
    // filesystem and block devices
    container!("fs_inodes_free", Gauge, "Free inodes of the filesystem.", ["device"],
        |c| c.on_device(|f| f.inodes_free)),
    container!("fs_inodes_total", Gauge, "Inodes of the filesystem.", ["device"],
        |c| c.on_device(|f| f.inodes)),
    container!("fs_limit_bytes", Gauge, "Size of the filesystem in bytes.", ["device"],
        |c| c.on_device(|f| f.size_bytes)),
    container!("fs_usage_bytes", Gauge, "Size of the writable layer in bytes.", ["device"],
        |c| c.on_device(|_| c.layer.map_or(0, |layer| layer.used_bytes))),
    container!("fs_reads_bytes_total", Counter, "Bytes read from devices.", ["device"],
        |c| per_device(c, |d| d.read_bytes)),
    container!("fs_reads_total", Counter, "Reads from devices.", ["device"],
        |c| per_device(c, |d| d.reads)),
    container!("fs_writes_bytes_total", Counter, "Bytes written to devices.", ["device"],
        |c| per_device(c, |d| d.write_bytes)),
    container!("fs_writes_total", Counter, "Writes to devices.", ["device"],
        |c| per_device(c, |d| d.writes)),
    container!("blkio_device_usage_total", Counter, "Bytes by device and operation.", ["device", "major", "minor", "operation"],
        by_operation),
    // processes
    container!("processes", Gauge, "Processes in the container.",
        |c: C| Some(c.processes.processes)),
    container!("file_descriptors", Gauge, "Open file descriptors.",
        |c: C| Some(c.processes.file_descriptors)),
    container!("sockets", Gauge, "Open sockets.",
        |c: C| Some(c.processes.sockets)),
    container!("threads", Gauge, "Threads in the container.",
        |c: C| Some(c.stats.pids.map_or(c.processes.threads, |pids| pids.current))),
    container!("threads_max", Gauge, "Most threads allowed; 0 without a limit.",
        |c: C| Some(c.stats.pids.and_then(|pids| pids.limit).unwrap_or(0))),
    container!("ulimits_soft", Gauge, "Soft limits of the first process.", ["ulimit"],
        soft_limits),
    // specification
    container!("last_seen", Gauge, "When this was read, in seconds since the epoch.",
        |c: C| Some(seconds(c.now_ns))),
    container!("start_time_seconds", Gauge, "When it was started, in seconds since the epoch.",
        |c: C| Some(seconds(c.started_ns))),
    container!("spec_cpu_period", Gauge, "Period of CPU bandwidth control in microseconds.",
        |c: C| Some(c.asked(|r| r.cpu_period).or(c.stats.limits.cpu_period_us).unwrap_or(0))),
    container!("spec_cpu_quota", Gauge, "CPU time allowed in a period, in microseconds.",
        |c: C| c.stats.limits.cpu_quota_us.or_else(|| c.asked(|r| r.cpu_quota))),
    container!("spec_cpu_shares", Gauge, "Shares of CPU time.",
        |c: C| Some(c.asked(|r| r.cpu_shares).or(c.stats.limits.cpu_shares).unwrap_or(0))),
    container!("spec_memory_limit_bytes", Gauge, "Memory limit in bytes; 0 without one.",
        |c: C| Some(c.stats.memory.and_then(|m| m.limit).unwrap_or(0))),
    container!("spec_memory_reservation_limit_bytes", Gauge, "Memory reservation in bytes.",
        |c: C| c.stats.limits.memory_reservation),
    container!("spec_memory_swap_limit_bytes", Gauge, "Limit on memory and swap in bytes; 0 without one.",
        |c: C| Some(swap_limit(c).unwrap_or(0))),
    // huge pages
    container!("hugetlb_usage_bytes", Gauge, "Huge pages used, in bytes.", ["pagesize"],
        |c| per_page_size(c, |p| p.usage)),
    container!("hugetlb_max_usage_bytes", Gauge, "Most huge pages used so far, in bytes.", ["pagesize"],
        |c| per_page_size(c, |p| p.max_usage.unwrap_or(p.usage))),
    // pressure
    container!("pressure_cpu_waiting_seconds_total", Counter, "Time some task waited for CPU, in seconds.",
        |c: C| waiting(c.stats.psi.cpu)),
    container!("pressure_cpu_stalled_seconds_total", Counter, "Time all tasks waited for CPU, in seconds.",
        |c: C| stalled(c.stats.psi.cpu)),
    container!("pressure_memory_waiting_seconds_total", Counter, "Time some task waited for memory, in seconds.",
        |c: C| waiting(c.stats.psi.memory)),
    container!("pressure_memory_stalled_seconds_total", Counter, "Time all tasks waited for memory, in seconds.",
        |c: C| stalled(c.stats.psi.memory)),
    container!("pressure_io_waiting_seconds_total", Counter, "Time some task waited for I/O, in seconds.",
        |c: C| waiting(c.stats.psi.io)),
    container!("pressure_io_stalled_seconds_total", Counter, "Time all tasks waited for I/O, in seconds.",
        |c: C| stalled(c.stats.psi.io)),
    // network
    network!("receive_bytes", "Bytes received.", rx_bytes),
    network!("receive_packets", "Packets received.", rx_packets),
    network!("receive_packets_dropped", "Packets dropped on receipt.", rx_dropped),
    network!("receive_errors", "Errors on receipt.", rx_errors),
    network!("transmit_bytes", "Bytes sent.", tx_bytes),
    network!("transmit_packets", "Packets sent.", tx_packets),
    network!("transmit_packets_dropped", "Packets dropped on sending.", tx_dropped),
    network!("transmit_errors", "Errors on sending.", tx_errors),
];

/// The kernel counts a cgroup with all its children, so both scopes are equal.
fn page_faults(c: &Container<'_>) -> Vec<Reading> {
    let Some(memory) = c.stats.memory else {
        return Vec::new();
    };
    let kinds = [
        ("pgfault", memory.pgfault),
        ("pgmajfault", memory.pgmajfault),
    ];
    let scopes = ["container", "hierarchy"];
    let both = |(kind, count): (&str, u64)| {
        scopes.map(|scope| (vec![kind.to_owned(), scope.to_owned()], count))
    };
    kinds.into_iter().flat_map(both).collect()
}

fn per_device(c: &Container<'_>, read: fn(&IoDevice) -> u64) -> Vec<Reading> {
    let name = |d: &IoDevice| (c.device_name)(d.major, d.minor);
    let devices = c.stats.io.iter();
    devices.map(|d| (vec![name(d)], read(d))).collect()
}

fn by_operation(c: &Container<'_>) -> Vec<Reading> {
    let of = |d: &IoDevice| {
        let labels = |operation: &str| {
            let name = (c.device_name)(d.major, d.minor);
            vec![
                name,
                d.major.to_string(),
                d.minor.to_string(),
                operation.to_owned(),
            ]
        };
        [
            (labels("Read"), d.read_bytes),
            (labels("Write"), d.write_bytes),
        ]
    };
    c.stats.io.iter().flat_map(of).collect()
}

fn soft_limits(c: &Container<'_>) -> Vec<Reading> {
    let files = c.processes.max_open_files.into_iter();
    files
        .map(|limit| (vec!["max_open_files".to_owned()], limit))
        .collect()
}

fn per_page_size(c: &Container<'_>, read: fn(&HugePages) -> u64) -> Vec<Reading> {
    let sizes = c.stats.hugepages.iter();
    sizes
        .map(|p| (vec![p.page_size.clone()], read(p)))
        .collect()
}

/// The limit of memory and swap together, if both are limited.
fn swap_limit(c: &Container<'_>) -> Option<u64> {
    let memory = c.stats.memory?.limit?;
    Some(memory.saturating_add(c.stats.swap?.limit?))
}

fn waiting(psi: Option<Psi>) -> Option<u64> {
    psi.map(|psi| psi.some.total_ns / NS)
}

fn stalled(psi: Option<Psi>) -> Option<u64> {
    psi.map(|psi| psi.full.total_ns / NS)
}

fn seconds(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0) / NS
}
