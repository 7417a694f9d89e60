//! Writing adjustments and updates (NRI-920): one method for each thing a plugin can say,
//! removals included, chained on the wire messages themselves.
//!
//! ```
//! use nri::adjust::{Adjust, SetResources, Strip};
//! use nri::proto::ContainerAdjustment;
//!
//! let mut adjust = ContainerAdjustment::default();
//! adjust.set_env("MODE", "fast").remove_mount("/old").memory_limit(1 << 30);
//! assert!(adjust.strip().is_some());
//! ```
//!
//! `add_…` fails the creation if another plugin set the same thing; `set_…` first removes and so
//! overrides it. Where a `set_…` is missing the wire has no removal to override with: a second plugin
//! always conflicts. Pure: no I/O, no clock.

use proto_nri::{
    CdiDevice, ContainerAdjustment, ContainerUpdate, Hook, Hooks, HugepageLimit, KeyValue,
    LinuxContainerAdjustment, LinuxCpu, LinuxDevice, LinuxIoPriority, LinuxMemory,
    LinuxMemoryPolicy, LinuxNamespace, LinuxNetDevice, LinuxPids, LinuxRdt, LinuxResources,
    LinuxScheduler, LinuxSeccomp, Mount, OptionalBool, OptionalInt, OptionalInt64,
    OptionalRepeatedString, OptionalString, OptionalUInt64, PosixRlimit,
};

/// The removal marker for a key (NRI-505).
pub fn marked(key: impl AsRef<str>) -> String {
    format!("-{}", key.as_ref())
}

/// The kinds of OCI hook, in the order in which a runtime takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookKind {
    Prestart,
    CreateRuntime,
    CreateContainer,
    StartContainer,
    Poststart,
    Poststop,
}

impl HookKind {
    /// The hooks of this kind.
    pub fn of(self, hooks: &mut Hooks) -> &mut Vec<Hook> {
        match self {
            Self::Prestart => &mut hooks.prestart,
            Self::CreateRuntime => &mut hooks.create_runtime,
            Self::CreateContainer => &mut hooks.create_container,
            Self::StartContainer => &mut hooks.start_container,
            Self::Poststart => &mut hooks.poststart,
            Self::Poststop => &mut hooks.poststop,
        }
    }
}

/// Says what is to be different about a container being created.
pub trait Adjust {
    fn add_annotation(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self;
    fn remove_annotation(&mut self, key: impl AsRef<str>) -> &mut Self;
    /// Overrides what an earlier plugin set.
    fn set_annotation(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self;

    fn add_mount(&mut self, mount: Mount) -> &mut Self;
    /// `destination`: inside the container.
    fn remove_mount(&mut self, destination: impl AsRef<str>) -> &mut Self;
    /// Overrides what an earlier plugin mounted there.
    fn set_mount(&mut self, mount: Mount) -> &mut Self;

    fn add_env(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self;
    fn remove_env(&mut self, name: impl AsRef<str>) -> &mut Self;
    /// Overrides what an earlier plugin set.
    fn set_env(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self;

    /// Replaces the whole command line, unless another plugin did.
    fn add_args<S: Into<String>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self;
    /// Replaces the whole command line, also if another plugin did.
    fn set_args<S: Into<String>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self;

    fn add_hook(&mut self, kind: HookKind, hook: Hook) -> &mut Self;
    /// Adds all of them; hooks of several plugins never conflict.
    fn add_hooks(&mut self, hooks: Hooks) -> &mut Self;

    fn add_device(&mut self, device: LinuxDevice) -> &mut Self;
    /// `path`: inside the container.
    fn remove_device(&mut self, path: impl AsRef<str>) -> &mut Self;
    /// Overrides what an earlier plugin put there.
    fn set_device(&mut self, device: LinuxDevice) -> &mut Self;

    /// `name` is fully qualified: `vendor.com/class=device`.
    fn add_cdi_device(&mut self, name: impl Into<String>) -> &mut Self;
    /// `kind` as in `RLIMIT_NOFILE`.
    fn add_rlimit(&mut self, kind: impl Into<String>, hard: u64, soft: u64) -> &mut Self;

    /// `kind`: network, pid, mount, ipc, uts, user, cgroup or time; an empty `path` makes a new one.
    fn add_namespace(&mut self, kind: impl Into<String>, path: impl Into<String>) -> &mut Self;
    /// The container shares the host's.
    fn remove_namespace(&mut self, kind: impl AsRef<str>) -> &mut Self;

    fn add_sysctl(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self;
    fn remove_sysctl(&mut self, key: impl AsRef<str>) -> &mut Self;
    /// Overrides what an earlier plugin set.
    fn set_sysctl(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self;

    /// Moves the host's interface `host` in under `name`; empty: it keeps its name.
    fn add_net_device(&mut self, host: impl Into<String>, name: impl Into<String>) -> &mut Self;
    fn remove_net_device(&mut self, host: impl AsRef<str>) -> &mut Self;
    /// Overrides what an earlier plugin said of `host`.
    fn set_net_device(&mut self, host: impl Into<String>, name: impl Into<String>) -> &mut Self;

    fn cgroups_path(&mut self, path: impl Into<String>) -> &mut Self;
    /// −1000…1000.
    fn oom_score_adj(&mut self, score: i64) -> &mut Self;
    fn io_priority(&mut self, priority: LinuxIoPriority) -> &mut Self;
    fn seccomp_policy(&mut self, policy: LinuxSeccomp) -> &mut Self;
    fn scheduler(&mut self, scheduler: LinuxScheduler) -> &mut Self;
    fn memory_policy(&mut self, policy: LinuxMemoryPolicy) -> &mut Self;

    fn rdt_clos_id(&mut self, id: impl Into<String>) -> &mut Self;
    fn rdt_schemata<S: Into<String>>(&mut self, lines: impl IntoIterator<Item = S>) -> &mut Self;
    fn rdt_enable_monitoring(&mut self, enable: bool) -> &mut Self;
    /// Takes the container out of RDT; beside a value: overrides earlier plugins.
    fn remove_rdt(&mut self) -> &mut Self;
}

impl Adjust for ContainerAdjustment {
    fn add_annotation(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.annotations.insert(key.into(), value.into());
        self
    }

    fn remove_annotation(&mut self, key: impl AsRef<str>) -> &mut Self {
        self.annotations.insert(marked(key), String::new());
        self
    }

    fn set_annotation(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self {
        let key = key.into();
        self.remove_annotation(&key).add_annotation(key, value)
    }

    fn add_mount(&mut self, mount: Mount) -> &mut Self {
        self.mounts.push(mount);
        self
    }

    fn remove_mount(&mut self, destination: impl AsRef<str>) -> &mut Self {
        self.add_mount(Mount {
            destination: marked(destination),
            ..Mount::default()
        })
    }

    fn set_mount(&mut self, mount: Mount) -> &mut Self {
        self.remove_mount(&mount.destination).add_mount(mount)
    }

    fn add_env(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.env.push(KeyValue {
            key: name.into(),
            value: value.into(),
        });
        self
    }

    fn remove_env(&mut self, name: impl AsRef<str>) -> &mut Self {
        self.add_env(marked(name), "")
    }

    fn set_env(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self {
        let name = name.into();
        self.remove_env(&name).add_env(name, value)
    }

    fn add_args<S: Into<String>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    fn set_args<S: Into<String>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self {
        let args = args.into_iter().map(Into::into);
        self.args = std::iter::once(String::new()).chain(args).collect();
        self
    }

    fn add_hook(&mut self, kind: HookKind, hook: Hook) -> &mut Self {
        kind.of(self.hooks.get_or_insert_default()).push(hook);
        self
    }

    fn add_hooks(&mut self, hooks: Hooks) -> &mut Self {
        extend_hooks(self.hooks.get_or_insert_default(), hooks);
        self
    }

    fn add_device(&mut self, device: LinuxDevice) -> &mut Self {
        linux(self).devices.push(device);
        self
    }

    fn remove_device(&mut self, path: impl AsRef<str>) -> &mut Self {
        self.add_device(LinuxDevice {
            path: marked(path),
            ..LinuxDevice::default()
        })
    }

    fn set_device(&mut self, device: LinuxDevice) -> &mut Self {
        self.remove_device(&device.path).add_device(device)
    }

    fn add_cdi_device(&mut self, name: impl Into<String>) -> &mut Self {
        self.cdi_devices.push(CdiDevice { name: name.into() });
        self
    }

    fn add_rlimit(&mut self, kind: impl Into<String>, hard: u64, soft: u64) -> &mut Self {
        self.rlimits.push(PosixRlimit {
            r#type: kind.into(),
            hard,
            soft,
        });
        self
    }

    fn add_namespace(&mut self, kind: impl Into<String>, path: impl Into<String>) -> &mut Self {
        linux(self).namespaces.push(LinuxNamespace {
            r#type: kind.into(),
            path: path.into(),
        });
        self
    }

    fn remove_namespace(&mut self, kind: impl AsRef<str>) -> &mut Self {
        self.add_namespace(marked(kind), "")
    }

    fn add_sysctl(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self {
        linux(self).sysctl.insert(key.into(), value.into());
        self
    }

    fn remove_sysctl(&mut self, key: impl AsRef<str>) -> &mut Self {
        self.add_sysctl(marked(key), "")
    }

    fn set_sysctl(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self {
        let key = key.into();
        self.remove_sysctl(&key).add_sysctl(key, value)
    }

    fn add_net_device(&mut self, host: impl Into<String>, name: impl Into<String>) -> &mut Self {
        let device = LinuxNetDevice { name: name.into() };
        linux(self).net_devices.insert(host.into(), device);
        self
    }

    fn remove_net_device(&mut self, host: impl AsRef<str>) -> &mut Self {
        self.add_net_device(marked(host), "")
    }

    fn set_net_device(&mut self, host: impl Into<String>, name: impl Into<String>) -> &mut Self {
        let host = host.into();
        self.remove_net_device(&host).add_net_device(host, name)
    }

    fn cgroups_path(&mut self, path: impl Into<String>) -> &mut Self {
        linux(self).cgroups_path = path.into();
        self
    }

    fn oom_score_adj(&mut self, score: i64) -> &mut Self {
        linux(self).oom_score_adj = Some(OptionalInt { value: score });
        self
    }

    fn io_priority(&mut self, priority: LinuxIoPriority) -> &mut Self {
        linux(self).io_priority = Some(priority);
        self
    }

    fn seccomp_policy(&mut self, policy: LinuxSeccomp) -> &mut Self {
        linux(self).seccomp_policy = Some(policy);
        self
    }

    fn scheduler(&mut self, scheduler: LinuxScheduler) -> &mut Self {
        linux(self).scheduler = Some(scheduler);
        self
    }

    fn memory_policy(&mut self, policy: LinuxMemoryPolicy) -> &mut Self {
        linux(self).memory_policy = Some(policy);
        self
    }

    fn rdt_clos_id(&mut self, id: impl Into<String>) -> &mut Self {
        rdt(self).clos_id = Some(OptionalString { value: id.into() });
        self
    }

    fn rdt_schemata<S: Into<String>>(&mut self, lines: impl IntoIterator<Item = S>) -> &mut Self {
        rdt(self).schemata = Some(OptionalRepeatedString {
            value: lines.into_iter().map(Into::into).collect(),
        });
        self
    }

    fn rdt_enable_monitoring(&mut self, enable: bool) -> &mut Self {
        rdt(self).enable_monitoring = Some(OptionalBool { value: enable });
        self
    }

    fn remove_rdt(&mut self) -> &mut Self {
        rdt(self).remove = true;
        self
    }
}

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

fn linux(adjust: &mut ContainerAdjustment) -> &mut LinuxContainerAdjustment {
    adjust.linux.get_or_insert_default()
}

fn rdt(adjust: &mut ContainerAdjustment) -> &mut LinuxRdt {
    linux(adjust).rdt.get_or_insert_default()
}

fn memory(of: &mut impl SetResources) -> &mut LinuxMemory {
    of.resources().memory.get_or_insert_default()
}

fn cpu(of: &mut impl SetResources) -> &mut LinuxCpu {
    of.resources().cpu.get_or_insert_default()
}

/// Appends the hooks of every kind.
pub(crate) fn extend_hooks(base: &mut Hooks, more: Hooks) {
    let Hooks {
        prestart,
        create_runtime,
        create_container,
        start_container,
        poststart,
        poststop,
    } = more;
    base.prestart.extend(prestart);
    base.create_runtime.extend(create_runtime);
    base.create_container.extend(create_container);
    base.start_container.extend(start_container);
    base.poststart.extend(poststart);
    base.poststop.extend(poststop);
}

/// Drops empty parts: what says nothing is not sent.
pub trait Strip: Sized {
    /// The message without empty parts; `None` if nothing remains.
    fn strip(self) -> Option<Self>;
}

/// Strips an optional part in place.
fn strip<T: Strip>(part: &mut Option<T>) {
    *part = part.take().and_then(Strip::strip);
}

/// `None` for a message at its default.
fn unless_default<T: Default + PartialEq>(message: T) -> Option<T> {
    (message != T::default()).then_some(message)
}

impl Strip for ContainerAdjustment {
    fn strip(mut self) -> Option<Self> {
        self.hooks = self.hooks.and_then(unless_default);
        strip(&mut self.linux);
        unless_default(self)
    }
}

impl Strip for LinuxContainerAdjustment {
    fn strip(mut self) -> Option<Self> {
        strip(&mut self.resources);
        self.rdt = self.rdt.and_then(unless_default);
        unless_default(self)
    }
}

impl Strip for LinuxResources {
    fn strip(mut self) -> Option<Self> {
        self.memory = self.memory.and_then(unless_default);
        self.cpu = self.cpu.and_then(unless_default);
        unless_default(self)
    }
}
