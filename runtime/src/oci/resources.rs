//! Limits: CRI to OCI and back, and the merge of an update (CRI-137, CRI-230 to CRI-233).
//!
//! In CRI zero means "not given": at create nothing is set, in an update the old value stays.

use std::collections::{BTreeMap, HashMap};

use oci_spec::runtime::{LinuxCpu, LinuxHugepageLimit, LinuxMemory, LinuxResources, Process, Spec};
use proto_cri::v1::{HugepageLimit, LinuxContainerResources};

use super::{
    error::SpecError,
    facts::{CgroupMode, HostFacts, Policy},
    process::oom_score_adj,
};

const FIELD: &str = "linux.resources";

/// The OCI limits of a new container; without device rules.
pub fn resources_from_cri(
    cri: &LinuxContainerResources,
    host: &HostFacts,
    policy: &Policy,
) -> Result<LinuxResources, SpecError> {
    let mut resources = LinuxResources::default();
    resources.set_devices(None);
    merge(&mut resources, cri, host, policy)?;
    Ok(resources)
}

/// Changes a stored spec (CRI-137): all or nothing. The caller applies the result to the cgroup and
/// keeps the old spec to put back if that fails.
pub fn apply_update(
    spec: &mut Spec,
    cri: &LinuxContainerResources,
    host: &HostFacts,
    policy: &Policy,
) -> Result<(), SpecError> {
    let score = match cri.oom_score_adj {
        0 => None,
        asked => Some(oom_score_adj(asked, host, policy)?),
    };
    let mut resources = current(spec).cloned().unwrap_or_default();
    merge(&mut resources, cri, host, policy)?;
    if let Some(linux) = spec.linux_mut() {
        linux.set_resources(Some(resources));
    }
    if let (Some(score), Some(process)) = (score, spec.process_mut()) {
        process.set_oom_score_adj(Some(score));
    }
    Ok(())
}

/// The limits of a spec, if it has any.
pub fn current(spec: &Spec) -> Option<&LinuxResources> {
    spec.linux().as_ref()?.resources().as_ref()
}

/// Resources for ContainerStatus (CRI-143): read from the spec as it is now.
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
    if let Some(unified) = resources.unified() {
        cri.unified = unified
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
    }
    cri
}

fn merge(
    resources: &mut LinuxResources,
    cri: &LinuxContainerResources,
    host: &HostFacts,
    policy: &Policy,
) -> Result<(), SpecError> {
    let mut cpu = resources.cpu().clone().unwrap_or_default();
    merge_cpu(&mut cpu, cri)?;
    resources.set_cpu(Some(cpu).filter(|c| *c != LinuxCpu::default()));
    let mut memory = (*resources.memory()).unwrap_or_default();
    merge_memory(&mut memory, cri, host)?;
    resources.set_memory(Some(memory).filter(|m| *m != LinuxMemory::default()));
    let pages = cri.hugepage_limits.iter();
    let pages = pages.map(|l| (l.page_size.as_str(), l.limit));
    put_hugepages(resources, pages, host, policy, FIELD)?;
    put_unified(resources, &cri.unified, host.cgroup, FIELD)
}

fn merge_cpu(cpu: &mut LinuxCpu, cri: &LinuxContainerResources) -> Result<(), SpecError> {
    if let Some(period) = positive(cri.cpu_period, "cpu_period")? {
        cpu.set_period(Some(period));
    }
    if let Some(shares) = positive(cri.cpu_shares, "cpu_shares")? {
        cpu.set_shares(Some(shares));
    }
    if let Some(quota) = given(cri.cpu_quota, FIELD, "cpu_quota")? {
        cpu.set_quota(Some(quota));
    }
    if !cri.cpuset_cpus.is_empty() {
        cpu.set_cpus(Some(cpuset(
            &cri.cpuset_cpus,
            &format!("{FIELD}.cpuset_cpus"),
        )?));
    }
    if !cri.cpuset_mems.is_empty() {
        cpu.set_mems(Some(cpuset(
            &cri.cpuset_mems,
            &format!("{FIELD}.cpuset_mems"),
        )?));
    }
    Ok(())
}

/// Swap is the total of memory and swap. Without a value of its own it equals the memory limit,
/// which means no swap, and follows it in an update.
fn merge_memory(
    memory: &mut LinuxMemory,
    cri: &LinuxContainerResources,
    host: &HostFacts,
) -> Result<(), SpecError> {
    const SWAP: &str = "memory_swap_limit_in_bytes";
    let limit = given(cri.memory_limit_in_bytes, FIELD, "memory_limit_in_bytes")?;
    let swap = given(cri.memory_swap_limit_in_bytes, FIELD, SWAP)?;
    let swap_followed = memory.swap().is_none() || memory.swap() == memory.limit();
    if let Some(limit) = limit {
        memory.set_limit(Some(limit));
        if swap_followed && host.swap {
            memory.set_swap(Some(limit));
        }
    }
    if let Some(swap) = swap {
        memory.set_swap(Some(swap));
    }
    check_swap(memory, FIELD, SWAP)
}

/// A swap limit counts memory, too: it is not below the memory limit. `parent` and `field` name it.
pub(super) fn check_swap(memory: &LinuxMemory, parent: &str, field: &str) -> Result<(), SpecError> {
    match (memory.limit(), memory.swap()) {
        (Some(limit), Some(swap)) if swap != -1 && (limit == -1 || limit > swap) => {
            Err(SpecError::invalid(
                format!("{parent}.{field}"),
                format!(
                    "{swap} is below the memory limit {limit}, but counts memory and swap together"
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Sets limits by page size. Without the controller they are refused, or passed over by the policy.
pub(super) fn put_hugepages<'a>(
    resources: &mut LinuxResources,
    limits: impl ExactSizeIterator<Item = (&'a str, u64)>,
    host: &HostFacts,
    policy: &Policy,
    parent: &str,
) -> Result<(), SpecError> {
    if limits.len() == 0 || (!host.hugetlb && policy.tolerate_missing_hugetlb) {
        return Ok(());
    }
    let field = format!("{parent}.hugepage_limits");
    if !host.hugetlb {
        return Err(SpecError::unsupported(
            field,
            "this host has no hugetlb controller",
        ));
    }
    let mut list = resources.hugepage_limits().clone().unwrap_or_default();
    for (page_size, limit) in limits {
        put_hugepage(&mut list, page_size, limit, &field)?;
    }
    resources.set_hugepage_limits(Some(list));
    Ok(())
}

/// Sets the limit of a page size, replacing an earlier one.
fn put_hugepage(
    list: &mut Vec<LinuxHugepageLimit>,
    page_size: &str,
    limit: u64,
    field: &str,
) -> Result<(), SpecError> {
    let digits = page_size.trim_end_matches(|c: char| c.is_ascii_uppercase());
    let unit = &page_size[digits.len()..];
    let sane = !digits.is_empty()
        && digits.chars().all(|c| c.is_ascii_digit())
        && ["B", "KB", "MB", "GB"].contains(&unit);
    if !sane {
        return Err(SpecError::invalid(
            field,
            format!("invalid page size {page_size:?} (example: 2MB)"),
        ));
    }
    let mut entry = LinuxHugepageLimit::default();
    entry.set_page_size(page_size.to_owned());
    entry.set_limit(i64::try_from(limit).unwrap_or(i64::MAX));
    match list.iter_mut().find(|l| l.page_size() == page_size) {
        Some(place) => *place = entry,
        None => list.push(entry),
    }
    Ok(())
}

/// Sets what is given for single files of the cgroup.
pub(super) fn put_unified(
    resources: &mut LinuxResources,
    unified: &BTreeMap<String, String>,
    mode: CgroupMode,
    parent: &str,
) -> Result<(), SpecError> {
    if unified.is_empty() {
        return Ok(());
    }
    let mut all: HashMap<String, String> = resources.unified().clone().unwrap_or_default();
    for (key, value) in unified {
        check_unified(key, value, mode, &format!("{parent}.unified"))?;
        all.insert(key.clone(), value.clone());
    }
    resources.set_unified(Some(all));
    Ok(())
}

/// A key is the name of one file of the container's cgroup: nothing that leads elsewhere.
fn check_unified(key: &str, value: &str, mode: CgroupMode, field: &str) -> Result<(), SpecError> {
    if mode != CgroupMode::V2 {
        return Err(SpecError::unsupported(
            field,
            format!("{key:?} needs cgroup v2, this host limits by v1"),
        ));
    }
    let name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !key.contains('.') || key.starts_with('.') || !key.chars().all(name) {
        return Err(SpecError::invalid(
            field,
            format!("invalid name of a cgroup file {key:?}"),
        ));
    }
    if key.starts_with("cgroup.") {
        return Err(SpecError::invalid(field, format!("{key:?} is not a limit")));
    }
    if value.contains('\0') {
        return Err(SpecError::invalid(
            field,
            format!("the value of {key:?} contains a NUL byte"),
        ));
    }
    Ok(())
}

/// A list such as `0-3,7`; the kernel decides whether they exist.
pub(super) fn cpuset(text: &str, field: &str) -> Result<String, SpecError> {
    let number = |part: &str| part.len() <= 6 && part.parse::<u32>().is_ok();
    let sane = text
        .trim()
        .split(',')
        .all(|range| match range.split_once('-') {
            Some((first, last)) => number(first) && number(last),
            None => number(range),
        });
    if sane {
        return Ok(text.trim().to_owned());
    }
    Err(SpecError::invalid(
        field,
        format!("invalid list {text:?} (example: 0-3,7)"),
    ))
}

fn positive(value: i64, field: &str) -> Result<Option<u64>, SpecError> {
    match u64::try_from(value) {
        Ok(0) => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(bad_limit(FIELD, field, value)),
    }
}

/// A limit that is given: not zero; -1 is unlimited. `parent` and `field` name it.
pub(super) fn given(value: i64, parent: &str, field: &str) -> Result<Option<i64>, SpecError> {
    match value {
        0 => Ok(None),
        value if value < -1 => Err(bad_limit(parent, field, value)),
        value => Ok(Some(value)),
    }
}

fn bad_limit(parent: &str, field: &str, value: i64) -> SpecError {
    SpecError::invalid(
        format!("{parent}.{field}"),
        format!("{value} is out of range"),
    )
}
