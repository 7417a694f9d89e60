//! Limits between OCI, CRI and NRI (the rows "cpu" to "resource check" of section 7, NRI-706, 707,
//! 730, 1230, 1231).

use std::collections::BTreeMap;

use oci_spec::runtime::{
    LinuxCpu, LinuxDeviceCgroup, LinuxDeviceType, LinuxMemory, LinuxPids, LinuxResources, Spec,
};
use proto_cri::v1::LinuxContainerResources;
use proto_nri as nri;

use super::{
    base::linux_of,
    devices::rule,
    error::SpecError,
    facts::{HostFacts, Policy},
    resources::{check_swap, cpuset, current, given, put_hugepages, put_unified},
};

const FIELD: &str = "adjust.linux.resources";

/// Swap limit where a memory limit is set without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwapRule {
    /// The memory limit: no swap (an adjustment of a new container).
    Limit,
    /// The memory limit as long as swap has no value of its own (an update).
    Follow,
}

/// Applies an update of an existing container's resources: all or nothing. Classes cannot change
/// once a container exists.
pub fn apply_nri_update(
    spec: &mut Spec,
    update: &nri::LinuxResources,
    host: &HostFacts,
    policy: &Policy,
) -> Result<(), SpecError> {
    for (class, name) in [
        (&update.blockio_class, "blockio_class"),
        (&update.rdt_class, "rdt_class"),
    ] {
        if class.as_ref().is_some_and(|c| !c.value.is_empty()) {
            return Err(SpecError::unsupported(
                format!("update.linux.resources.{name}"),
                "the class of an existing container cannot change",
            ));
        }
    }
    let mut resources = current(spec).cloned().unwrap_or_default();
    merge(&mut resources, update, host, policy, SwapRule::Follow)?;
    linux_of(spec).set_resources(Some(resources));
    Ok(())
}

/// Merges everything but the classes.
pub(super) fn merge(
    resources: &mut LinuxResources,
    nri: &nri::LinuxResources,
    host: &HostFacts,
    policy: &Policy,
    swap: SwapRule,
) -> Result<(), SpecError> {
    if let Some(asked) = &nri.cpu {
        let mut cpu = resources.cpu().clone().unwrap_or_default();
        merge_cpu(&mut cpu, asked)?;
        resources.set_cpu(Some(cpu).filter(|c| *c != LinuxCpu::default()));
    }
    if let Some(asked) = &nri.memory {
        let mut memory = (*resources.memory()).unwrap_or_default();
        merge_memory(&mut memory, asked, host, swap)?;
        resources.set_memory(Some(memory).filter(|m| *m != LinuxMemory::default()));
    }
    let pages = nri.hugepage_limits.iter();
    let pages = pages.map(|l| (l.page_size.as_str(), l.limit));
    put_hugepages(resources, pages, host, policy, FIELD)?;
    put_unified(resources, &nri.unified, host.cgroup, FIELD)?;
    match nri.pids.as_ref().map(|p| p.limit) {
        None => {}
        Some(limit) if limit < 0 => {
            resources.set_pids(None);
        }
        Some(limit) => {
            let mut pids = LinuxPids::default();
            pids.set_limit(limit);
            resources.set_pids(Some(pids));
        }
    }
    for asked in &nri.devices {
        let rule = device_rule(asked)?;
        resources.devices_mut().get_or_insert_default().push(rule);
    }
    Ok(())
}

/// Zero means "not given" here as well: some plugins send the zeros of CRI back (NRI-1231).
fn merge_cpu(cpu: &mut LinuxCpu, asked: &nri::LinuxCpu) -> Result<(), SpecError> {
    let number = |value: &Option<nri::OptionalUInt64>| value.as_ref().map(|v| v.value);
    if let Some(shares) = number(&asked.shares).filter(|v| *v != 0) {
        cpu.set_shares(Some(shares));
    }
    if let Some(period) = number(&asked.period).filter(|v| *v != 0) {
        cpu.set_period(Some(period));
    }
    if let Some(quota) = limit_of(&asked.quota, "cpu.quota")? {
        cpu.set_quota(Some(quota));
    }
    let runtime = asked.realtime_runtime.as_ref().map(|v| v.value);
    if let Some(runtime) = runtime.filter(|v| *v != 0) {
        cpu.set_realtime_runtime(Some(runtime));
    }
    if let Some(period) = number(&asked.realtime_period).filter(|v| *v != 0) {
        cpu.set_realtime_period(Some(period));
    }
    if !asked.cpus.is_empty() {
        cpu.set_cpus(Some(cpuset(&asked.cpus, &format!("{FIELD}.cpu.cpus"))?));
    }
    if !asked.mems.is_empty() {
        cpu.set_mems(Some(cpuset(&asked.mems, &format!("{FIELD}.cpu.mems"))?));
    }
    Ok(())
}

/// All eight values (NRI-706).
fn merge_memory(
    memory: &mut LinuxMemory,
    asked: &nri::LinuxMemory,
    host: &HostFacts,
    rule: SwapRule,
) -> Result<(), SpecError> {
    let limit = limit_of(&asked.limit, "memory.limit")?;
    let swap = limit_of(&asked.swap, "memory.swap")?;
    let followed = memory.swap().is_none() || memory.swap() == memory.limit();
    if let Some(limit) = limit {
        memory.set_limit(Some(limit));
        if host.swap && (followed || rule == SwapRule::Limit) {
            memory.set_swap(Some(limit));
        }
    }
    if let Some(swap) = swap {
        memory.set_swap(Some(swap));
    }
    if let Some(value) = limit_of(&asked.reservation, "memory.reservation")? {
        memory.set_reservation(Some(value));
    }
    if let Some(value) = limit_of(&asked.kernel, "memory.kernel")? {
        memory.set_kernel(Some(value));
    }
    if let Some(value) = limit_of(&asked.kernel_tcp, "memory.kernel_tcp")? {
        memory.set_kernel_tcp(Some(value));
    }
    if let Some(swappiness) = &asked.swappiness {
        if swappiness.value > 200 {
            return Err(SpecError::invalid(
                format!("{FIELD}.memory.swappiness"),
                format!("{} is above 200", swappiness.value),
            ));
        }
        memory.set_swappiness(Some(swappiness.value));
    }
    if let Some(disable) = &asked.disable_oom_killer {
        memory.set_disable_oom_killer(Some(disable.value));
    }
    if let Some(hierarchy) = &asked.use_hierarchy {
        memory.set_use_hierarchy(Some(hierarchy.value));
    }
    check_swap(memory, FIELD, "memory.swap")
}

/// Present and not zero; -1 is unlimited.
fn limit_of(value: &Option<nri::OptionalInt64>, field: &str) -> Result<Option<i64>, SpecError> {
    given(value.as_ref().map_or(0, |v| v.value), FIELD, field)
}

fn device_rule(asked: &nri::LinuxDeviceCgroup) -> Result<LinuxDeviceCgroup, SpecError> {
    let kind = match asked.r#type.as_str() {
        "" | "a" => None,
        "b" => Some(LinuxDeviceType::B),
        "c" | "u" => Some(LinuxDeviceType::C),
        other => {
            return Err(SpecError::invalid(
                format!("{FIELD}.devices"),
                format!("unknown type of device rule {other:?}"),
            ));
        }
    };
    if asked.access.is_empty() || !asked.access.chars().all(|c| "rwm".contains(c)) {
        return Err(SpecError::invalid(
            format!("{FIELD}.devices"),
            format!("invalid access {:?} (must be of \"rwm\")", asked.access),
        ));
    }
    // A negative number means all, as an absent one does.
    let number =
        |value: &Option<nri::OptionalInt64>| value.as_ref().map(|v| v.value).filter(|v| *v >= 0);
    Ok(rule(
        asked.allow,
        kind,
        number(&asked.major),
        number(&asked.minor),
        &asked.access,
    ))
}

/// A spec's limits as plugins see them; class names are not known from a spec (NRI-730).
pub fn resources_to_nri(oci: &LinuxResources) -> nri::LinuxResources {
    let int = |value: Option<i64>| value.map(|value| nri::OptionalInt64 { value });
    let uint = |value: Option<u64>| value.map(|value| nri::OptionalUInt64 { value });
    let flag = |value: Option<bool>| value.map(|value| nri::OptionalBool { value });
    nri::LinuxResources {
        memory: oci.memory().as_ref().map(|m| nri::LinuxMemory {
            limit: int(m.limit()),
            reservation: int(m.reservation()),
            swap: int(m.swap()),
            kernel: int(m.kernel()),
            kernel_tcp: int(m.kernel_tcp()),
            swappiness: uint(m.swappiness()),
            disable_oom_killer: flag(m.disable_oom_killer()),
            use_hierarchy: flag(m.use_hierarchy()),
        }),
        cpu: oci.cpu().as_ref().map(|c| nri::LinuxCpu {
            shares: uint(c.shares()),
            quota: int(c.quota()),
            period: uint(c.period()),
            realtime_runtime: int(c.realtime_runtime()),
            realtime_period: uint(c.realtime_period()),
            cpus: c.cpus().clone().unwrap_or_default(),
            mems: c.mems().clone().unwrap_or_default(),
        }),
        hugepage_limits: oci
            .hugepage_limits()
            .iter()
            .flatten()
            .map(|limit| nri::HugepageLimit {
                page_size: limit.page_size().clone(),
                limit: u64::try_from(limit.limit()).unwrap_or(u64::MAX),
            })
            .collect(),
        blockio_class: None,
        rdt_class: None,
        unified: oci
            .unified()
            .iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<BTreeMap<_, _>>(),
        devices: oci
            .devices()
            .iter()
            .flatten()
            .map(device_rule_to_nri)
            .collect(),
        pids: oci.pids().as_ref().map(|p| nri::LinuxPids {
            limit: if p.limit() > 0 { p.limit() } else { -1 },
        }),
    }
}

fn device_rule_to_nri(rule: &LinuxDeviceCgroup) -> nri::LinuxDeviceCgroup {
    let int = |value: Option<i64>| value.map(|value| nri::OptionalInt64 { value });
    nri::LinuxDeviceCgroup {
        allow: rule.allow(),
        r#type: rule.typ().map_or("a", |t| kind_name(t)).to_owned(),
        major: int(rule.major()),
        minor: int(rule.minor()),
        access: rule.access().clone().unwrap_or_default(),
    }
}

/// The letter of a device type.
pub(super) fn kind_name(kind: LinuxDeviceType) -> &'static str {
    match kind {
        LinuxDeviceType::A => "a",
        LinuxDeviceType::B => "b",
        LinuxDeviceType::C | LinuxDeviceType::U => "c",
        LinuxDeviceType::P => "p",
    }
}

/// The limits of a CRI request (update, pod overhead, pod resources); what CRI leaves at zero is
/// left out, so that a plugin can see what was not asked for (NRI-1231).
pub fn cri_to_nri(cri: &LinuxContainerResources) -> nri::LinuxResources {
    let int = |value: i64| (value != 0).then_some(nri::OptionalInt64 { value });
    let uint = |value: i64| {
        u64::try_from(value)
            .ok()
            .filter(|v| *v != 0)
            .map(|value| nri::OptionalUInt64 { value })
    };
    let memory = nri::LinuxMemory {
        limit: int(cri.memory_limit_in_bytes),
        swap: int(cri.memory_swap_limit_in_bytes),
        ..nri::LinuxMemory::default()
    };
    let cpu = nri::LinuxCpu {
        shares: uint(cri.cpu_shares),
        quota: int(cri.cpu_quota),
        period: uint(cri.cpu_period),
        cpus: cri.cpuset_cpus.clone(),
        mems: cri.cpuset_mems.clone(),
        ..nri::LinuxCpu::default()
    };
    nri::LinuxResources {
        memory: Some(memory),
        cpu: Some(cpu),
        hugepage_limits: cri
            .hugepage_limits
            .iter()
            .map(|limit| nri::HugepageLimit {
                page_size: limit.page_size.clone(),
                limit: limit.limit,
            })
            .collect(),
        unified: cri.unified.clone(),
        ..nri::LinuxResources::default()
    }
}
