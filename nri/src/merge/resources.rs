//! Merging `LinuxResources`, of a container being created and of an existing one.
//!
//! The patterns name every field and have no `..`: a field added to the wire does not compile
//! until it is merged or its absence is decided here.

use std::collections::BTreeSet;

use proto_nri::{
    Field, HugepageLimit, LinuxCpu, LinuxDeviceCgroup, LinuxMemory, LinuxPids, LinuxResources,
    OptionalString,
};

use super::update::Entry;
use crate::owners::{Conflict, ContainerOwners, PluginId};

/// Makes the messages that are always present on the wire (NRI-407).
pub(super) fn normalise(resources: &mut LinuxResources) {
    resources.memory.get_or_insert_default();
    resources.cpu.get_or_insert_default();
}

/// Claims for `plugin` all that `wanted` sets, and overwrites it in the entry; or changes nothing.
/// Device rules cannot be updated (NRI-547).
pub(super) fn update(
    entry: &mut Entry,
    plugin: &PluginId,
    wanted: LinuxResources,
) -> Result<(), Box<Conflict>> {
    claim(&mut entry.owners, plugin, &wanted)?;
    let wanted = LinuxResources {
        devices: Vec::new(),
        ..wanted
    };
    overlay(&mut entry.resources, wanted);
    Ok(())
}

/// Claims for `plugin` every field and key that `wanted` sets, or none of them.
pub(super) fn claim(
    owners: &mut ContainerOwners,
    plugin: &PluginId,
    wanted: &LinuxResources,
) -> Result<(), Box<Conflict>> {
    let fields = simple_fields(wanted);
    let mut keys = BTreeSet::new();
    for field in &fields {
        owners.check(plugin, *field)?;
    }
    for key in keys_of(wanted) {
        owners.check_key(plugin, key.0, key.1)?;
        if !keys.insert(key) {
            return Err(owners.set_twice(plugin, key.0, key.1));
        }
    }
    for field in fields {
        owners.claim(plugin, field)?;
    }
    for (field, key) in keys {
        owners.claim_key(plugin, field, key)?;
    }
    Ok(())
}

/// The keys of compound fields that `resources` sets.
fn keys_of(resources: &LinuxResources) -> impl Iterator<Item = (Field, &str)> {
    let pages = resources.hugepage_limits.iter();
    let pages = pages.map(|page| (Field::HugepageLimits, page.page_size.as_str()));
    let unified = resources.unified.keys();
    pages.chain(unified.map(|key| (Field::CgroupsUnified, key.as_str())))
}

/// The simple fields that `resources` sets, in order of their numbers.
pub(crate) fn simple_fields(resources: &LinuxResources) -> Vec<Field> {
    let LinuxResources {
        memory,
        cpu,
        hugepage_limits: _,
        blockio_class,
        rdt_class,
        unified: _,
        devices: _,
        pids,
    } = resources;
    let mut set = Vec::new();
    if let Some(memory) = memory {
        memory_fields(memory, &mut set);
    }
    if let Some(cpu) = cpu {
        cpu_fields(cpu, &mut set);
    }
    push(&mut set, Field::PidsLimit, pids.is_some());
    push(&mut set, Field::BlockioClass, blockio_class.is_some());
    push(&mut set, Field::RdtClass, rdt_class.is_some());
    set
}

fn memory_fields(memory: &LinuxMemory, set: &mut Vec<Field>) {
    let LinuxMemory {
        limit,
        reservation,
        swap,
        kernel,
        kernel_tcp,
        swappiness,
        disable_oom_killer,
        use_hierarchy,
    } = memory;
    push(set, Field::MemLimit, limit.is_some());
    push(set, Field::MemReservation, reservation.is_some());
    push(set, Field::MemSwapLimit, swap.is_some());
    push(set, Field::MemKernelLimit, kernel.is_some());
    push(set, Field::MemTcpLimit, kernel_tcp.is_some());
    push(set, Field::MemSwappiness, swappiness.is_some());
    push(
        set,
        Field::MemDisableOomKiller,
        disable_oom_killer.is_some(),
    );
    push(set, Field::MemUseHierarchy, use_hierarchy.is_some());
}

fn cpu_fields(cpu: &LinuxCpu, set: &mut Vec<Field>) {
    let LinuxCpu {
        shares,
        quota,
        period,
        realtime_runtime,
        realtime_period,
        cpus,
        mems,
    } = cpu;
    push(set, Field::CpuShares, shares.is_some());
    push(set, Field::CpuQuota, quota.is_some());
    push(set, Field::CpuPeriod, period.is_some());
    push(set, Field::CpuRealtimeRuntime, realtime_runtime.is_some());
    push(set, Field::CpuRealtimePeriod, realtime_period.is_some());
    push(set, Field::CpuSetCpUs, !cpus.is_empty());
    push(set, Field::CpuSetMems, !mems.is_empty());
}

fn push(set: &mut Vec<Field>, field: Field, is_set: bool) {
    if is_set {
        set.push(field);
    }
}

/// Overwrites in `base` all that `top` sets: values where present, hugepage limits by page size
/// (NRI-548, mended), unified by key; device rules are added.
pub(crate) fn overlay(base: &mut LinuxResources, top: LinuxResources) {
    let LinuxResources {
        memory,
        cpu,
        hugepage_limits,
        blockio_class,
        rdt_class,
        unified,
        devices,
        pids,
    } = top;
    if let Some(memory) = memory {
        overlay_memory(base.memory.get_or_insert_default(), memory);
    }
    if let Some(cpu) = cpu {
        overlay_cpu(base.cpu.get_or_insert_default(), cpu);
    }
    overlay_hugepages(&mut base.hugepage_limits, hugepage_limits);
    over::<OptionalString>(&mut base.blockio_class, blockio_class);
    over::<OptionalString>(&mut base.rdt_class, rdt_class);
    base.unified.extend(unified);
    Vec::<LinuxDeviceCgroup>::extend(&mut base.devices, devices);
    over::<LinuxPids>(&mut base.pids, pids);
}

fn overlay_memory(base: &mut LinuxMemory, top: LinuxMemory) {
    over(&mut base.limit, top.limit);
    over(&mut base.reservation, top.reservation);
    over(&mut base.swap, top.swap);
    over(&mut base.kernel, top.kernel);
    over(&mut base.kernel_tcp, top.kernel_tcp);
    over(&mut base.swappiness, top.swappiness);
    over(&mut base.disable_oom_killer, top.disable_oom_killer);
    over(&mut base.use_hierarchy, top.use_hierarchy);
}

fn overlay_cpu(base: &mut LinuxCpu, top: LinuxCpu) {
    over(&mut base.shares, top.shares);
    over(&mut base.quota, top.quota);
    over(&mut base.period, top.period);
    over(&mut base.realtime_runtime, top.realtime_runtime);
    over(&mut base.realtime_period, top.realtime_period);
    if !top.cpus.is_empty() {
        base.cpus = top.cpus;
    }
    if !top.mems.is_empty() {
        base.mems = top.mems;
    }
}

fn overlay_hugepages(base: &mut Vec<HugepageLimit>, top: Vec<HugepageLimit>) {
    let sizes: BTreeSet<&str> = top.iter().map(|page| page.page_size.as_str()).collect();
    base.retain(|page| !sizes.contains(page.page_size.as_str()));
    base.extend(top);
}

fn over<T>(base: &mut Option<T>, top: Option<T>) {
    if top.is_some() {
        *base = top;
    }
}
