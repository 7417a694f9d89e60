//! Converts limits from CRI to OCI and back, and merges updates (CRI-137, CRI-230 to CRI-233).
//!
//! In CRI zero means "not given": create sets nothing, an update keeps the old value.

use oci_spec::runtime::{LinuxResources, Process, Spec};
use proto_cri::v1::{HugepageLimit, LinuxContainerResources};
use proto_nri::Field;

use super::{
    error::SpecError,
    facts::ApplyContext,
    limits::{self, Requester, current},
    nri_resources::cri_to_nri,
    process::oom_score_adj,
};

/// The OCI limits of a new container, without device rules.
pub fn resources_from_cri(
    cri: &LinuxContainerResources,
    context: &ApplyContext<'_>,
) -> Result<LinuxResources, SpecError> {
    let mut resources = LinuxResources::default();
    resources.set_devices(None);
    merge(&mut resources, cri, context)?;
    Ok(resources)
}

/// Changes a stored spec (CRI-137), all or nothing. The caller applies the result to the cgroup and
/// keeps the old spec for a rollback.
pub fn apply_update(
    spec: &mut Spec,
    cri: &LinuxContainerResources,
    context: &ApplyContext<'_>,
) -> Result<(), SpecError> {
    let score = match cri.oom_score_adj {
        0 => None,
        asked => Some(oom_score_adj(asked, context.host)?),
    };
    let mut resources = current(spec).cloned().unwrap_or_default();
    merge(&mut resources, cri, context)?;
    if let Some(linux) = spec.linux_mut() {
        linux.set_resources(Some(resources));
    }
    if let (Some(score), Some(process)) = (score, spec.process_mut()) {
        process.set_oom_score_adj(Some(score));
    }
    Ok(())
}

/// Resources for ContainerStatus (CRI-143), from the current spec.
pub fn resources_to_cri(spec: &Spec) -> LinuxContainerResources {
    let mut cri = LinuxContainerResources {
        oom_score_adj: spec
            .process()
            .as_ref()
            .and_then(Process::oom_score_adj)
            .map_or(0, i64::from),
        ..LinuxContainerResources::default()
    };
    let Some(resources) = current(spec) else {
        return cri;
    };
    if let Some(cpu) = resources.cpu() {
        let number = |value: Option<u64>| i64::try_from(value.unwrap_or(0)).unwrap_or(i64::MAX);
        cri.cpu_period = number(cpu.period());
        cri.cpu_quota = cpu.quota().unwrap_or(0);
        cri.cpu_shares = number(cpu.shares());
        cri.cpuset_cpus = cpu.cpus().clone().unwrap_or_default();
        cri.cpuset_mems = cpu.mems().clone().unwrap_or_default();
    }
    if let Some(memory) = resources.memory() {
        cri.memory_limit_in_bytes = memory.limit().unwrap_or(0);
        cri.memory_swap_limit_in_bytes = memory.swap().unwrap_or(0);
    }
    for limit in resources.hugepage_limits().iter().flatten() {
        cri.hugepage_limits.push(HugepageLimit {
            page_size: limit.page_size().clone(),
            limit: u64::try_from(limit.limit()).unwrap_or(u64::MAX),
        });
    }
    cri.unified = resources.unified().clone().into_iter().flatten().collect();
    cri
}

/// Merges CRI's limits in NRI's form, whose periods and shares are unsigned.
fn merge(
    resources: &mut LinuxResources,
    cri: &LinuxContainerResources,
    context: &ApplyContext<'_>,
) -> Result<(), SpecError> {
    let unsigned = [
        (Field::CpuPeriod, cri.cpu_period),
        (Field::CpuShares, cri.cpu_shares),
    ];
    if let Some((field, value)) = unsigned.into_iter().find(|(_, value)| *value < 0) {
        return Err(Requester::Cri.out_of_range(field, value));
    }
    limits::merge(resources, &cri_to_nri(cri), context, Requester::Cri)
}
