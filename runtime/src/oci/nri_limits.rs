//! Refuses limits of an adjustment that this host, or every current kernel, lacks.
//!
//! Updates are exempt: a kubelet sends every page size and its swap to every host, so unavailable
//! limits are left out there (CRI-231). A plugin requests a limit on purpose.

use proto_nri::{self as nri, Field};

use super::{error::SpecError, facts::HostFacts};

/// Processes that exist at once during a start: the create helper, and two that it forks.
const LEAST_PIDS: i64 = 3;

/// Refuses the first unavailable limit, by the name of its field.
pub(super) fn check(asked: &nri::LinuxResources, host: &HostFacts) -> Result<(), SpecError> {
    if let Some(memory) = &asked.memory {
        check_memory(memory, host)?;
    }
    if let Some(cpu) = &asked.cpu {
        let runtime = cpu.realtime_runtime.as_ref().is_some_and(|v| v.value != 0);
        let period = cpu.realtime_period.as_ref().is_some_and(|v| v.value != 0);
        let why = "this host does not assign real-time per cgroup";
        refuse(runtime && !host.realtime, Field::CpuRealtimeRuntime, why)?;
        refuse(period && !host.realtime, Field::CpuRealtimePeriod, why)?;
    }
    let pids = asked.pids.as_ref().map(|pids| pids.limit);
    if let Some(limit) = pids.filter(|limit| (1..LEAST_PIDS).contains(limit)) {
        return Err(SpecError::invalid(
            Field::PidsLimit,
            format!("{limit} is below the {LEAST_PIDS} processes that a container takes to start"),
        ));
    }
    refuse(
        !asked.hugepage_limits.is_empty() && !host.hugetlb,
        Field::HugepageLimits,
        "this host has no hugetlb controller",
    )
}

fn check_memory(memory: &nri::LinuxMemory, host: &HostFacts) -> Result<(), SpecError> {
    let limits = |value: &Option<nri::OptionalInt64>| value.as_ref().is_some_and(|v| v.value > 0);
    let v2 = !host.cgroup_v1;
    refuse(
        limits(&memory.swap) && !host.swap,
        Field::MemSwapLimit,
        "this host does not count swap per cgroup",
    )?;
    refuse(
        limits(&memory.kernel),
        Field::MemKernelLimit,
        "kernel memory limits were removed from Linux",
    )?;
    refuse(
        limits(&memory.kernel_tcp) && v2,
        Field::MemTcpLimit,
        "cgroup v2 counts it with the rest",
    )?;
    refuse(
        memory.swappiness.is_some() && v2,
        Field::MemSwappiness,
        "not available per cgroup on cgroup v2",
    )?;
    refuse(
        memory.disable_oom_killer.as_ref().is_some_and(|d| d.value) && v2,
        Field::MemDisableOomKiller,
        "not available on cgroup v2",
    )?;
    refuse(
        memory.use_hierarchy.as_ref().is_some_and(|h| !h.value),
        Field::MemUseHierarchy,
        "accounting without parents was removed from Linux",
    )
}

fn refuse(missing: bool, field: Field, why: &str) -> Result<(), SpecError> {
    if missing {
        return Err(SpecError::unsupported(field, why));
    }
    Ok(())
}
