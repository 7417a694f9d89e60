//! The simple fields of resources by number, one list for permissions, ownership and merging.
//!
//! The patterns name every field without `..`: a field added to the wire does not compile until it
//! is listed here. Callers handle compound fields (hugepage limits, unified, device rules)
//! themselves.

use proto_nri::{Field, LinuxCpu, LinuxMemory, LinuxResources};

/// Called for each field with its value in a message, and in the message below it.
pub(crate) trait Visitor {
    /// A field at its default is unset.
    fn field<T: Default + PartialEq>(&mut self, field: Field, value: &mut T, below: &mut T);
}

/// Visits the simple fields of `resources`, in order of their numbers. `below` gets each part that
/// `resources` has.
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

/// Visits all fields of a part; each has a number.
macro_rules! visit_part {
    ($visitor:ident: $part:ident over $below:ident, $Part:ident { $($field:ident: $Number:ident,)* }) => {
        let $Part { $($field),* } = $part;
        $($visitor.field(Field::$Number, $field, &mut $below.$field);)*
    };
}

fn visit_memory(memory: &mut LinuxMemory, below: &mut LinuxMemory, visitor: &mut impl Visitor) {
    visit_part! { visitor: memory over below, LinuxMemory {
        limit: MemLimit,
        reservation: MemReservation,
        swap: MemSwapLimit,
        kernel: MemKernelLimit,
        kernel_tcp: MemTcpLimit,
        swappiness: MemSwappiness,
        disable_oom_killer: MemDisableOomKiller,
        use_hierarchy: MemUseHierarchy,
    } }
}

fn visit_cpu(cpu: &mut LinuxCpu, below: &mut LinuxCpu, visitor: &mut impl Visitor) {
    visit_part! { visitor: cpu over below, LinuxCpu {
        shares: CpuShares,
        quota: CpuQuota,
        period: CpuPeriod,
        realtime_runtime: CpuRealtimeRuntime,
        realtime_period: CpuRealtimePeriod,
        cpus: CpuSetCpUs,
        mems: CpuSetMems,
    } }
}
