//! Resources that a plugin can set, in an adjustment and in an update.

use proto_nri::{
    ContainerAdjustment, ContainerUpdate, HugepageLimit, LinuxCpu, LinuxMemory, LinuxPids,
    LinuxResources, OptionalBool, OptionalInt64, OptionalString, OptionalUInt64,
};

/// Methods that set one number or switch, in its wrapper on the wire.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($value:ident: $kind:ty) sets $part:ident.$field:ident: $wrapper:ident;)*) => {
        $($(#[$doc])*
        fn $name(&mut self, $value: $kind) -> &mut Self {
            $part(self).$field = Some($wrapper { value: $value });
            self
        })*
    };
}

/// Sets resources of a container being created or of an existing one.
pub trait SetResources: Sized {
    /// The resources, created if absent.
    fn resources(&mut self) -> &mut LinuxResources;

    setters! {
        /// Bytes; −1 is unlimited.
        memory_limit(bytes: i64) sets memory.limit: OptionalInt64;
        /// Bytes; the soft limit.
        memory_reservation(bytes: i64) sets memory.reservation: OptionalInt64;
        /// Bytes of memory and swap together.
        memory_swap(bytes: i64) sets memory.swap: OptionalInt64;
        /// Bytes.
        memory_kernel(bytes: i64) sets memory.kernel: OptionalInt64;
        /// Bytes.
        memory_kernel_tcp(bytes: i64) sets memory.kernel_tcp: OptionalInt64;
        /// 0…100.
        memory_swappiness(swappiness: u64) sets memory.swappiness: OptionalUInt64;
        memory_disable_oom_killer(disable: bool) sets memory.disable_oom_killer: OptionalBool;
        memory_use_hierarchy(on: bool) sets memory.use_hierarchy: OptionalBool;
        /// The relative weight of cgroup v1: 2…262144.
        cpu_shares(shares: u64) sets cpu.shares: OptionalUInt64;
        /// Microseconds in each period; −1 is unlimited.
        cpu_quota(micros: i64) sets cpu.quota: OptionalInt64;
        /// Microseconds.
        cpu_period(micros: u64) sets cpu.period: OptionalUInt64;
        /// Microseconds.
        cpu_realtime_runtime(micros: i64) sets cpu.realtime_runtime: OptionalInt64;
        /// Microseconds.
        cpu_realtime_period(micros: u64) sets cpu.realtime_period: OptionalUInt64;
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
    /// `page_size` as in `2MB`; `bytes` in total.
    fn add_hugepage_limit(&mut self, page_size: impl Into<String>, bytes: u64) -> &mut Self {
        self.resources().hugepage_limits.push(HugepageLimit {
            page_size: page_size.into(),
            limit: bytes,
        });
        self
    }
    /// Empty: the class is removed.
    fn blockio_class(&mut self, class: impl Into<String>) -> &mut Self {
        let value = class.into();
        self.resources().blockio_class = Some(OptionalString { value });
        self
    }
    /// Empty: the class is removed.
    fn rdt_class(&mut self, class: impl Into<String>) -> &mut Self {
        let value = class.into();
        self.resources().rdt_class = Some(OptionalString { value });
        self
    }
    /// A file of cgroup v2 and the value to write to it.
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
        let linux = self.linux.get_or_insert_default();
        linux.resources.get_or_insert_default()
    }
}

impl SetResources for ContainerUpdate {
    fn resources(&mut self) -> &mut LinuxResources {
        let linux = self.linux.get_or_insert_default();
        linux.resources.get_or_insert_default()
    }
}

/// An update of the container with this id. With `ignore_failure`, a conflict with another plugin
/// or a value that cannot be applied is not an error.
///
/// The methods of [`SetResources`] return `&mut ContainerUpdate`, for chains; `clone` ends one:
///
/// ```
/// use nri::adjust::{SetResources, update};
///
/// let all = vec![
///     update("c1", false).memory_limit(64 << 20).cpu_shares(512).clone(),
///     update("c2", true).cpuset_cpus("0-1").clone(),
/// ];
/// assert_eq!(all[0].container_id, "c1");
/// ```
pub fn update(container: impl Into<String>, ignore_failure: bool) -> ContainerUpdate {
    ContainerUpdate {
        container_id: container.into(),
        ignore_failure,
        ..ContainerUpdate::default()
    }
}

fn memory(of: &mut impl SetResources) -> &mut LinuxMemory {
    of.resources().memory.get_or_insert_default()
}

fn cpu(of: &mut impl SetResources) -> &mut LinuxCpu {
    of.resources().cpu.get_or_insert_default()
}
