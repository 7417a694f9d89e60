//! Builders of adjustments and updates (NRI-920): one method per field of the protocol, removals
//! included, chained on the wire messages themselves.
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
//! `add_…` fails the creation if another plugin set the same field; `set_…` first removes it and so
//! overrides it. Fields without a `set_…` have no removal on the wire: a second plugin always
//! conflicts. Pure: no I/O, no clock.

use proto_nri::{
    CdiDevice, ContainerAdjustment, Hook, Hooks, KeyValue, LinuxContainerAdjustment, LinuxDevice,
    LinuxIoPriority, LinuxMemoryPolicy, LinuxNamespace, LinuxNetDevice, LinuxRdt, LinuxScheduler,
    LinuxSeccomp, Mount, OptionalBool, OptionalInt, OptionalRepeatedString, OptionalString,
    PosixRlimit,
};

pub use self::{
    resources::{SetResources, update},
    strip::Strip,
};

mod resources;
mod strip;

/// The removal marker for a key (NRI-505).
pub fn marked(key: impl AsRef<str>) -> String {
    format!("-{}", key.as_ref())
}

/// The kinds of OCI hook, in the order in which a runtime runs them.
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
    pub(crate) const ALL: [Self; 6] = [
        Self::Prestart,
        Self::CreateRuntime,
        Self::CreateContainer,
        Self::StartContainer,
        Self::Poststart,
        Self::Poststop,
    ];

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

/// The rlimits of Linux, by their names after `RLIMIT_`.
pub const RLIMITS: &[&str] = &[
    "AS",
    "CORE",
    "CPU",
    "DATA",
    "FSIZE",
    "LOCKS",
    "MEMLOCK",
    "MSGQUEUE",
    "NICE",
    "NOFILE",
    "NPROC",
    "RSS",
    "RTPRIO",
    "RTTIME",
    "SIGPENDING",
    "STACK",
];

/// Sets the adjustments of a container being created.
///
/// ```
/// use nri::prelude::*;
///
/// let mut answer = CreateAnswer::default();
/// answer
///     .adjust
///     .add_env("MODE", "fast")
///     .add_rlimit("RLIMIT_NOFILE", 4096, 1024)
///     .memory_limit(64 << 20)
///     .cpu_shares(512)
///     .add_mount(Mount {
///         destination: "/etc/tool".into(),
///         source: "/opt/tool".into(),
///         r#type: "bind".into(),
///         options: vec!["rbind".into(), "ro".into()],
///     })
///     .add_device(LinuxDevice {
///         path: "/dev/nothing".into(),
///         r#type: "c".into(),
///         major: 1,
///         minor: 3,
///         file_mode: Some(OptionalFileMode { value: 0o666 }),
///         ..Default::default()
///     })
///     .add_hook(
///         HookKind::CreateRuntime,
///         Hook {
///             path: "/usr/local/bin/prepare".into(),
///             args: vec!["prepare".into(), "--quiet".into()],
///             timeout: Some(OptionalInt { value: 5 }),
///             ..Default::default()
///         },
///     );
/// ```
pub trait Adjust: Sized {
    /// The adjustment to change.
    fn adjustment(&mut self) -> &mut ContainerAdjustment;

    fn add_annotation(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.adjustment()
            .annotations
            .insert(key.into(), value.into());
        self
    }

    fn remove_annotation(&mut self, key: impl AsRef<str>) -> &mut Self {
        self.adjustment()
            .annotations
            .insert(marked(key), String::new());
        self
    }

    /// Overrides an earlier plugin's value.
    fn set_annotation(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self {
        let key = key.into();
        self.remove_annotation(&key).add_annotation(key, value)
    }

    fn add_mount(&mut self, mount: Mount) -> &mut Self {
        self.adjustment().mounts.push(mount);
        self
    }

    /// `destination`: inside the container.
    fn remove_mount(&mut self, destination: impl AsRef<str>) -> &mut Self {
        self.add_mount(Mount {
            destination: marked(destination),
            ..Mount::default()
        })
    }

    /// Overrides an earlier plugin's mount there.
    fn set_mount(&mut self, mount: Mount) -> &mut Self {
        self.remove_mount(&mount.destination).add_mount(mount)
    }

    fn add_env(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.adjustment().env.push(KeyValue {
            key: name.into(),
            value: value.into(),
        });
        self
    }

    fn remove_env(&mut self, name: impl AsRef<str>) -> &mut Self {
        self.add_env(marked(name), "")
    }

    /// Overrides an earlier plugin's value.
    fn set_env(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self {
        let name = name.into();
        self.remove_env(&name).add_env(name, value)
    }

    /// Replaces the complete command line; conflicts if another plugin did.
    fn add_args<S: Into<String>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self {
        self.adjustment().args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Replaces the complete command line, also if another plugin did.
    fn set_args<S: Into<String>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self {
        let args = args.into_iter().map(Into::into);
        self.adjustment().args = std::iter::once(String::new()).chain(args).collect();
        self
    }

    /// Hooks of several plugins never conflict.
    fn add_hook(&mut self, kind: HookKind, hook: Hook) -> &mut Self {
        kind.of(self.adjustment().hooks.get_or_insert_default())
            .push(hook);
        self
    }

    fn add_device(&mut self, device: LinuxDevice) -> &mut Self {
        linux(self).devices.push(device);
        self
    }

    /// `path`: inside the container.
    fn remove_device(&mut self, path: impl AsRef<str>) -> &mut Self {
        self.add_device(LinuxDevice {
            path: marked(path),
            ..LinuxDevice::default()
        })
    }

    /// Overrides an earlier plugin's device at this path.
    fn set_device(&mut self, device: LinuxDevice) -> &mut Self {
        self.remove_device(&device.path).add_device(device)
    }

    /// `name` is fully qualified: `vendor.com/class=device`.
    fn add_cdi_device(&mut self, name: impl Into<String>) -> &mut Self {
        self.adjustment()
            .cdi_devices
            .push(CdiDevice { name: name.into() });
        self
    }

    /// `kind` as in `RLIMIT_NOFILE`.
    fn add_rlimit(&mut self, kind: impl Into<String>, hard: u64, soft: u64) -> &mut Self {
        self.adjustment().rlimits.push(PosixRlimit {
            r#type: kind.into(),
            hard,
            soft,
        });
        self
    }

    /// `kind`: network, pid, mount, ipc, uts, user, cgroup or time; an empty `path` makes a new
    /// one.
    fn add_namespace(&mut self, kind: impl Into<String>, path: impl Into<String>) -> &mut Self {
        linux(self).namespaces.push(LinuxNamespace {
            r#type: kind.into(),
            path: path.into(),
        });
        self
    }

    /// The container shares the host's.
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

    /// Overrides an earlier plugin's value.
    fn set_sysctl(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self {
        let key = key.into();
        self.remove_sysctl(&key).add_sysctl(key, value)
    }

    /// Moves the host's interface `host` in as `name`; if `name` is empty it keeps its name.
    fn add_net_device(&mut self, host: impl Into<String>, name: impl Into<String>) -> &mut Self {
        let device = LinuxNetDevice { name: name.into() };
        linux(self).net_devices.insert(host.into(), device);
        self
    }

    fn remove_net_device(&mut self, host: impl AsRef<str>) -> &mut Self {
        self.add_net_device(marked(host), "")
    }

    /// Overrides an earlier plugin's setting for `host`.
    fn set_net_device(&mut self, host: impl Into<String>, name: impl Into<String>) -> &mut Self {
        let host = host.into();
        self.remove_net_device(&host).add_net_device(host, name)
    }

    fn cgroups_path(&mut self, path: impl Into<String>) -> &mut Self {
        linux(self).cgroups_path = path.into();
        self
    }

    /// −1000…1000.
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

    /// Removes the container from RDT; together with a value it overrides earlier plugins.
    fn remove_rdt(&mut self) -> &mut Self {
        rdt(self).remove = true;
        self
    }
}

impl Adjust for ContainerAdjustment {
    fn adjustment(&mut self) -> &mut ContainerAdjustment {
        self
    }
}

/// The Linux part, created if absent.
fn linux(of: &mut impl Adjust) -> &mut LinuxContainerAdjustment {
    of.adjustment().linux.get_or_insert_default()
}

fn rdt(of: &mut impl Adjust) -> &mut LinuxRdt {
    linux(of).rdt.get_or_insert_default()
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
