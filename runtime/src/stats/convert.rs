//! Converts samples to ContainerStats and PodSandboxStats (CRI-151, 152, 156). Pure.

use super::reading::{Interface, LayerUsage, Sample};
use crate::cgroup::{PressureLine, Psi};
use proto_cri::v1 as cri;

/// The default interface; all others except `lo` are listed separately.
const DEFAULT_INTERFACE: &str = "eth0";

/// One container's statistics. Without a sample it is not running: most fields are absent
/// (CRI-151).
pub fn container(
    attributes: cri::ContainerAttributes,
    sample: Option<&Sample>,
    layer: Option<&LayerUsage>,
) -> cri::ContainerStats {
    cri::ContainerStats {
        attributes: Some(attributes),
        cpu: sample.and_then(cpu),
        memory: sample.and_then(memory),
        writable_layer: layer.map(filesystem),
        swap: sample.and_then(swap),
        io: sample.and_then(io),
    }
}

/// One pod's statistics, from its cgroup. `interfaces` is `None` on the host's network.
pub fn pod(
    attributes: cri::PodSandboxAttributes,
    sample: &Sample,
    interfaces: Option<&[Interface]>,
    containers: Vec<cri::ContainerStats>,
) -> cri::PodSandboxStats {
    let process = sample.stats.pids.map(|pids| cri::ProcessUsage {
        timestamp: sample.at_ns,
        process_count: value(pids.current),
    });
    cri::PodSandboxStats {
        attributes: Some(attributes),
        linux: Some(cri::LinuxPodSandboxStats {
            cpu: cpu(sample),
            memory: memory(sample),
            network: interfaces.map(|interfaces| network(sample.at_ns, interfaces)),
            process,
            containers,
            io: io(sample),
        }),
        windows: None,
    }
}

fn cpu(sample: &Sample) -> Option<cri::CpuUsage> {
    let cpu = sample.stats.cpu?;
    Some(cri::CpuUsage {
        timestamp: sample.at_ns,
        usage_core_nano_seconds: value(cpu.usage_ns),
        usage_nano_cores: sample.nano_cores.and_then(value),
        psi: sample.stats.psi.cpu.map(psi),
    })
}

fn memory(sample: &Sample) -> Option<cri::MemoryUsage> {
    let memory = sample.stats.memory?;
    let working_set = memory.working_set();
    let available = memory.limit.map(|limit| limit.saturating_sub(working_set));
    Some(cri::MemoryUsage {
        timestamp: sample.at_ns,
        working_set_bytes: value(working_set),
        available_bytes: available.and_then(value),
        usage_bytes: value(memory.usage),
        rss_bytes: value(memory.anon),
        page_faults: value(memory.pgfault),
        major_page_faults: value(memory.pgmajfault),
        psi: sample.stats.psi.memory.map(psi),
    })
}

fn swap(sample: &Sample) -> Option<cri::SwapUsage> {
    let swap = sample.stats.swap?;
    let available = swap.limit.map(|limit| limit.saturating_sub(swap.usage));
    Some(cri::SwapUsage {
        timestamp: sample.at_ns,
        swap_available_bytes: available.and_then(value),
        swap_usage_bytes: value(swap.usage),
    })
}

fn io(sample: &Sample) -> Option<cri::IoUsage> {
    let pressure = sample.stats.psi.io?;
    Some(cri::IoUsage {
        timestamp: sample.at_ns,
        psi: Some(psi(pressure)),
    })
}

fn psi(psi: Psi) -> cri::PsiStats {
    let line = |line: PressureLine| cri::PsiData {
        total: line.total_ns,
        avg10: line.avg10,
        avg60: line.avg60,
        avg300: line.avg300,
    };
    cri::PsiStats {
        full: Some(line(psi.full)),
        some: Some(line(psi.some)),
    }
}

fn filesystem(layer: &LayerUsage) -> cri::FilesystemUsage {
    cri::FilesystemUsage {
        timestamp: layer.at_ns,
        fs_id: Some(cri::FilesystemIdentifier {
            mountpoint: layer.mountpoint.clone(),
        }),
        used_bytes: value(layer.used_bytes),
        inodes_used: value(layer.inodes_used),
    }
}

fn network(at_ns: i64, interfaces: &[Interface]) -> cri::NetworkUsage {
    let usage = |interface: &Interface| cri::NetworkInterfaceUsage {
        name: interface.name.clone(),
        rx_bytes: value(interface.counters.rx_bytes),
        rx_errors: value(interface.counters.rx_errors),
        tx_bytes: value(interface.counters.tx_bytes),
        tx_errors: value(interface.counters.tx_errors),
    };
    let default = |i: &&Interface| i.name == DEFAULT_INTERFACE;
    let other = |i: &&Interface| i.name != DEFAULT_INTERFACE && i.name != "lo";
    cri::NetworkUsage {
        timestamp: at_ns,
        default_interface: interfaces.iter().find(default).map(usage),
        interfaces: interfaces.iter().filter(other).map(usage).collect(),
    }
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "the messages' fields are all optional"
)]
fn value(value: u64) -> Option<cri::UInt64Value> {
    Some(cri::UInt64Value { value })
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
