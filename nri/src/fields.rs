//! The simple fields of resources with their numbers, in one list for permissions, ownership and merging.
//!
//! The patterns name every field and have no `..`: a field added to the wire does not compile until it is listed here.
//! Compound fields (hugepage limits, unified, device rules) are their users' own.

use proto_nri::{Field, LinuxCpu, LinuxMemory, LinuxResources};

/// Called for each field with its value in a message, and in the message over which that one is laid.
pub(crate) trait Visitor {
    /// A field at its default is not set.
    fn field<T: Default + PartialEq>(&mut self, field: Field, value: &mut T, below: &mut T);
}

/// Visits the simple fields of `resources`, in order of their numbers. `below` gets the parts that `resources` has.
pub(crate) fn visit(
    resources: &mut LinuxResources,
    below: &mut LinuxResources,
    visitor: &mut impl Visitor,
) {
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
    if let Some(memory) = memory {
        visit_memory(memory, below.memory.get_or_insert_default(), visitor);
    }
    if let Some(cpu) = cpu {
        visit_cpu(cpu, below.cpu.get_or_insert_default(), visitor);
    }
    visitor.field(Field::PidsLimit, pids, &mut below.pids);
    visitor.field(Field::BlockioClass, blockio_class, &mut below.blockio_class);
    visitor.field(Field::RdtClass, rdt_class, &mut below.rdt_class);
}

fn visit_memory(memory: &mut LinuxMemory, below: &mut LinuxMemory, visitor: &mut impl Visitor) {
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
    visitor.field(Field::MemLimit, limit, &mut below.limit);
    visitor.field(Field::MemReservation, reservation, &mut below.reservation);
    visitor.field(Field::MemSwapLimit, swap, &mut below.swap);
    visitor.field(Field::MemKernelLimit, kernel, &mut below.kernel);
    visitor.field(Field::MemTcpLimit, kernel_tcp, &mut below.kernel_tcp);
    visitor.field(Field::MemSwappiness, swappiness, &mut below.swappiness);
    visitor.field(
        Field::MemDisableOomKiller,
        disable_oom_killer,
        &mut below.disable_oom_killer,
    );
    visitor.field(
        Field::MemUseHierarchy,
        use_hierarchy,
        &mut below.use_hierarchy,
    );
}

fn visit_cpu(cpu: &mut LinuxCpu, below: &mut LinuxCpu, visitor: &mut impl Visitor) {
    let LinuxCpu {
        shares,
        quota,
        period,
        realtime_runtime,
        realtime_period,
        cpus,
        mems,
    } = cpu;
    visitor.field(Field::CpuShares, shares, &mut below.shares);
    visitor.field(Field::CpuQuota, quota, &mut below.quota);
    visitor.field(Field::CpuPeriod, period, &mut below.period);
    visitor.field(
        Field::CpuRealtimeRuntime,
        realtime_runtime,
        &mut below.realtime_runtime,
    );
    visitor.field(
        Field::CpuRealtimePeriod,
        realtime_period,
        &mut below.realtime_period,
    );
    visitor.field(Field::CpuSetCpUs, cpus, &mut below.cpus);
    visitor.field(Field::CpuSetMems, mems, &mut below.mems);
}
