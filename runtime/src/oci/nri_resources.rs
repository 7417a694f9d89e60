//! Limits of specs and of CRI in NRI's form, and NRI's updates (NRI-730, NRI-1230, NRI-1231).

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxResources, Spec};
use proto_cri::v1::LinuxContainerResources;
use proto_nri as nri;

use super::{
    base::linux_of,
    error::SpecError,
    facts::ApplyContext,
    limits::{self, Requester, current},
};

/// Applies an update to an existing container's resources, all or nothing. Classes cannot change.
pub fn apply_nri_update(
    spec: &mut Spec,
    update: &nri::LinuxResources,
    context: &ApplyContext<'_>,
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
    limits::merge(&mut resources, update, context, Requester::Update)?;
    linux_of(spec).set_resources(Some(resources));
    Ok(())
}

/// A spec's limits in NRI's form; a spec has no class names (NRI-730).
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
        unified: oci.unified().clone().into_iter().flatten().collect(),
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
        r#type: rule.typ().unwrap_or_default().as_str().to_owned(),
        major: int(rule.major()),
        minor: int(rule.minor()),
        access: rule.access().clone().unwrap_or_default(),
    }
}

/// The limits of a CRI request (update, pod overhead, pod resources). Zeros are left out, so that a
/// plugin sees which limits were not requested (NRI-1231).
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
