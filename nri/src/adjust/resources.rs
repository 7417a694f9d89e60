//! What a plugin can say of resources, in an adjustment and in an update.

use proto_nri::{
    ContainerAdjustment, ContainerUpdate, HugepageLimit, LinuxContainerAdjustment, LinuxCpu,
    LinuxMemory, LinuxPids, LinuxResources, OptionalBool, OptionalInt64, OptionalString,
    OptionalUInt64,
};

/// Sets resources of a container being created or of an existing one.
pub trait SetResources: Sized {
    /// The resources, made if they are not there.
    fn resources(&mut self) -> &mut LinuxResources;

    /// Bytes; −1 is unlimited.
    fn memory_limit(&mut self, bytes: i64) -> &mut Self {
        memory(self).limit = Some(OptionalInt64 { value: bytes });
        self
    }
    /// Bytes; the soft limit.
    fn memory_reservation(&mut self, bytes: i64) -> &mut Self {
        memory(self).reservation = Some(OptionalInt64 { value: bytes });
        self
    }
    /// Bytes of memory and swap together.
    fn memory_swap(&mut self, bytes: i64) -> &mut Self {
        memory(self).swap = Some(OptionalInt64 { value: bytes });
        self
    }
    /// Bytes.
    fn memory_kernel(&mut self, bytes: i64) -> &mut Self {
        memory(self).kernel = Some(OptionalInt64 { value: bytes });
        self
    }
    /// Bytes.
    fn memory_kernel_tcp(&mut self, bytes: i64) -> &mut Self {
        memory(self).kernel_tcp = Some(OptionalInt64 { value: bytes });
        self
    }
    /// 0…100.
    fn memory_swappiness(&mut self, swappiness: u64) -> &mut Self {
        memory(self).swappiness = Some(OptionalUInt64 { value: swappiness });
        self
    }
    fn memory_disable_oom_killer(&mut self, disable: bool) -> &mut Self {
        memory(self).disable_oom_killer = Some(OptionalBool { value: disable });
        self
    }
    fn memory_use_hierarchy(&mut self, on: bool) -> &mut Self {
        memory(self).use_hierarchy = Some(OptionalBool { value: on });
        self
    }

    /// The relative weight of cgroup v1: 2…262144.
    fn cpu_shares(&mut self, shares: u64) -> &mut Self {
        cpu(self).shares = Some(OptionalUInt64 { value: shares });
        self
    }
    /// Microseconds in each period; −1 is unlimited.
    fn cpu_quota(&mut self, micros: i64) -> &mut Self {
        cpu(self).quota = Some(OptionalInt64 { value: micros });
        self
    }
    /// Microseconds.
    fn cpu_period(&mut self, micros: u64) -> &mut Self {
        cpu(self).period = Some(OptionalUInt64 { value: micros });
        self
    }
    /// Microseconds.
    fn cpu_realtime_runtime(&mut self, micros: i64) -> &mut Self {
        cpu(self).realtime_runtime = Some(OptionalInt64 { value: micros });
        self
    }
    /// Microseconds.
    fn cpu_realtime_period(&mut self, micros: u64) -> &mut Self {
        cpu(self).realtime_period = Some(OptionalUInt64 { value: micros });
        self
    }
    /// A list such as `0-3,8`.
    fn cpuset_cpus(&mut self, cpus: impl Into<String>) -> &mut Self {
        cpu(self).cpus = cpus.into();
        self
    }
    /// A list such as `0-3,8`.
    fn cpuset_mems(&mut self, mems: impl Into<String>) -> &mut Self {
        cpu(self).mems = mems.into();
        self
    }

    /// Negative is unlimited.
    fn pids_limit(&mut self, limit: i64) -> &mut Self {
        self.resources().pids = Some(LinuxPids { limit });
        self
    }
    /// `page_size` as in `2MB`; `bytes` in all.
    fn add_hugepage_limit(&mut self, page_size: impl Into<String>, bytes: u64) -> &mut Self {
        self.resources().hugepage_limits.push(HugepageLimit {
            page_size: page_size.into(),
            limit: bytes,
        });
        self
    }
    /// Empty: the class is taken away.
    fn blockio_class(&mut self, class: impl Into<String>) -> &mut Self {
        let value = class.into();
        self.resources().blockio_class = Some(OptionalString { value });
        self
    }
    /// Empty: the class is taken away.
    fn rdt_class(&mut self, class: impl Into<String>) -> &mut Self {
        let value = class.into();
        self.resources().rdt_class = Some(OptionalString { value });
        self
    }
    /// A file of cgroup v2 and what is written to it.
    fn add_unified(&mut self, file: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.resources().unified.insert(file.into(), value.into());
        self
    }
}

impl SetResources for LinuxResources {
    fn resources(&mut self) -> &mut LinuxResources {
        self
    }
}

impl SetResources for ContainerAdjustment {
    fn resources(&mut self) -> &mut LinuxResources {
        linux(self).resources.get_or_insert_default()
    }
}

impl SetResources for ContainerUpdate {
    fn resources(&mut self) -> &mut LinuxResources {
        let linux = self.linux.get_or_insert_default();
        linux.resources.get_or_insert_default()
    }
}

/// An update of the container with this id. With `ignore_failure` a conflict with another plugin,
/// or a value that cannot be applied, is no error.
pub fn update(container: impl Into<String>, ignore_failure: bool) -> ContainerUpdate {
    ContainerUpdate {
        container_id: container.into(),
        ignore_failure,
        ..ContainerUpdate::default()
    }
}

/// The part for Linux, made if it is not there.
pub(super) fn linux(adjust: &mut ContainerAdjustment) -> &mut LinuxContainerAdjustment {
    adjust.linux.get_or_insert_default()
}

fn memory(of: &mut impl SetResources) -> &mut LinuxMemory {
    of.resources().memory.get_or_insert_default()
}

fn cpu(of: &mut impl SetResources) -> &mut LinuxCpu {
    of.resources().cpu.get_or_insert_default()
}
