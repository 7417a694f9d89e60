//! Accessors of a runtime's messages for plugins: pods and containers without walks through nested
//! messages. The other direction is [`adjust`](crate::adjust).
//!
//! ```
//! use nri::{proto::*, read::{ReadContainer, ReadPod}};
//!
//! let pod = PodSandbox {
//!     name: "web".into(),
//!     namespace: "shop".into(),
//!     annotations: [("class.example.com/container.db".into(), "gold".into())].into(),
//!     ..Default::default()
//! };
//! let container = Container {
//!     name: "db".into(),
//!     env: vec!["HOME=/srv".into()],
//!     ..Default::default()
//! };
//! assert_eq!(pod.full_name(), "shop/web");
//! assert_eq!(pod.annotation_for("class.example.com", &container.name), Some("gold"));
//! assert_eq!(pod.namespace_path("network"), None);            // that of the host
//! assert_eq!(container.env_var("HOME"), Some("/srv"));
//! assert_eq!(container.limits().memory, None);                // not limited, or unknown
//! ```
//!
//! Pure: no I/O, no clock. Everything borrows from the message.

use proto_nri::{
    Container, ContainerUpdate, LinuxNamespace, LinuxResources, Mount, PodSandbox, PosixRlimit,
};

use crate::annotation::effective_annotation;

/// Accessors of a pod.
pub trait ReadPod {
    /// `namespace/name`, as in logs.
    fn full_name(&self) -> String;
    fn annotation(&self, key: &str) -> Option<&str>;
    /// The annotation that applies to a container of the pod: `KEY/container.<name>`, else
    /// `KEY/pod`, else `KEY`.
    fn annotation_for(&self, key: &str, container: &str) -> Option<&str>;
    fn label(&self, key: &str) -> Option<&str>;
    /// Path of the pod's namespace of this kind, as in `network`; `None` if it is the host's.
    fn namespace_path(&self, kind: &str) -> Option<&str>;
    /// The pod's own cgroup, or the parent of its containers' if the runtime reports only that;
    /// `None` if it reports neither.
    fn cgroup(&self) -> Option<&str>;
    /// The limits of the complete pod.
    fn limits(&self) -> Limits<'_>;
}

/// Accessors of a container.
pub trait ReadContainer {
    fn annotation(&self, key: &str) -> Option<&str>;
    fn label(&self, key: &str) -> Option<&str>;
    /// The value of a variable; the last one counts, as in a process.
    fn env_var(&self, name: &str) -> Option<&str>;
    /// The mount at this path inside the container.
    fn mount_at(&self, destination: &str) -> Option<&Mount>;
    /// `kind` as in `RLIMIT_NOFILE`.
    fn rlimit(&self, kind: &str) -> Option<&PosixRlimit>;
    /// Path of the container's namespace of this kind, as in `network`; `None` if it has no path:
    /// it is new, or the host's.
    fn namespace_path(&self, kind: &str) -> Option<&str>;
    fn cgroup(&self) -> Option<&str>;
    fn limits(&self) -> Limits<'_>;
}

/// Questions to resources: what UpdateContainer asks for, or an update of a container.
pub trait ReadResources {
    fn limits(&self) -> Limits<'_>;
}

/// Resources without their wrappers: `None` means that the message has no value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits<'a> {
    /// Bytes; −1 is unlimited.
    pub memory: Option<i64>,
    /// Bytes; the soft limit.
    pub memory_reservation: Option<i64>,
    /// Bytes of memory and swap together.
    pub memory_swap: Option<i64>,
    /// The relative weight of cgroup v1: 2…262144.
    pub cpu_shares: Option<u64>,
    /// Microseconds in each period; −1 is unlimited.
    pub cpu_quota: Option<i64>,
    /// Microseconds.
    pub cpu_period: Option<u64>,
    /// A list such as `0-3,8`.
    pub cpus: Option<&'a str>,
    /// Memory nodes, a list such as `0-3,8`.
    pub mems: Option<&'a str>,
    /// Zero and below: no limit.
    pub pids: Option<i64>,
    pub rdt_class: Option<&'a str>,
    pub blockio_class: Option<&'a str>,
}

impl<'a> Limits<'a> {
    /// Of resources, where there are any.
    fn of(resources: Option<&'a LinuxResources>) -> Self {
        let Some(resources) = resources else {
            return Self::default();
        };
        let memory = resources.memory.as_ref();
        let cpu = resources.cpu.as_ref();
        Self {
            memory: memory.and_then(|m| Some(m.limit.as_ref()?.value)),
            memory_reservation: memory.and_then(|m| Some(m.reservation.as_ref()?.value)),
            memory_swap: memory.and_then(|m| Some(m.swap.as_ref()?.value)),
            cpu_shares: cpu.and_then(|c| Some(c.shares.as_ref()?.value)),
            cpu_quota: cpu.and_then(|c| Some(c.quota.as_ref()?.value)),
            cpu_period: cpu.and_then(|c| Some(c.period.as_ref()?.value)),
            cpus: cpu.and_then(|c| non_empty(&c.cpus)),
            mems: cpu.and_then(|c| non_empty(&c.mems)),
            pids: resources.pids.as_ref().map(|pids| pids.limit),
            rdt_class: resources.rdt_class.as_ref().map(|c| c.value.as_str()),
            blockio_class: resources.blockio_class.as_ref().map(|c| c.value.as_str()),
        }
    }
}

/// `None` for an empty text.
fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn path_of<'a>(namespaces: Option<&'a Vec<LinuxNamespace>>, kind: &str) -> Option<&'a str> {
    let mut all = namespaces?.iter();
    non_empty(&all.find(|namespace| namespace.r#type == kind)?.path)
}

impl ReadPod for PodSandbox {
    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    fn annotation_for(&self, key: &str, container: &str) -> Option<&str> {
        effective_annotation(self, key, container)
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    fn namespace_path(&self, kind: &str) -> Option<&str> {
        path_of(self.linux.as_ref().map(|linux| &linux.namespaces), kind)
    }

    fn cgroup(&self) -> Option<&str> {
        let linux = self.linux.as_ref()?;
        non_empty(&linux.cgroups_path).or_else(|| non_empty(&linux.cgroup_parent))
    }

    fn limits(&self) -> Limits<'_> {
        Limits::of(self.linux.as_ref().and_then(|l| l.resources.as_ref()))
    }
}

impl ReadContainer for Container {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    fn env_var(&self, name: &str) -> Option<&str> {
        let mut all = self.env.iter().rev().filter_map(|v| v.split_once('='));
        all.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    fn mount_at(&self, destination: &str) -> Option<&Mount> {
        let mut all = self.mounts.iter();
        all.find(|mount| mount.destination == destination)
    }

    fn rlimit(&self, kind: &str) -> Option<&PosixRlimit> {
        self.rlimits.iter().find(|rlimit| rlimit.r#type == kind)
    }

    fn namespace_path(&self, kind: &str) -> Option<&str> {
        path_of(self.linux.as_ref().map(|linux| &linux.namespaces), kind)
    }

    fn cgroup(&self) -> Option<&str> {
        non_empty(&self.linux.as_ref()?.cgroups_path)
    }

    fn limits(&self) -> Limits<'_> {
        Limits::of(self.linux.as_ref().and_then(|l| l.resources.as_ref()))
    }
}

impl ReadResources for LinuxResources {
    fn limits(&self) -> Limits<'_> {
        Limits::of(Some(self))
    }
}

impl ReadResources for ContainerUpdate {
    fn limits(&self) -> Limits<'_> {
        Limits::of(self.linux.as_ref().and_then(|l| l.resources.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adjust::{SetResources, update};
    use proto_nri::{LinuxContainer, LinuxPodSandbox};

    #[test]
    fn the_nearest_annotation_counts() {
        let mut pod = PodSandbox::default();
        let mut seen = Vec::new();
        for (key, value) in [("k", "all"), ("k/pod", "pod"), ("k/container.c", "c")] {
            pod.annotations.insert(key.into(), value.into());
            seen.push(pod.annotation_for("k", "c").map(str::to_owned));
        }
        let seen: Vec<_> = seen.iter().flatten().collect();
        assert_eq!(seen, ["all", "pod", "c"]);
        assert_eq!(pod.annotation_for("k", "other"), Some("pod"));
        assert_eq!(pod.annotation_for("none", "c"), None);
    }

    #[test]
    fn a_namespace_without_a_path_is_none() {
        let namespaces = vec![
            LinuxNamespace {
                r#type: "network".into(),
                path: "/run/netns/x".into(),
            },
            LinuxNamespace {
                r#type: "pid".into(),
                path: String::new(),
            },
        ];
        let pod = PodSandbox {
            linux: Some(LinuxPodSandbox {
                namespaces: namespaces.clone(),
                cgroup_parent: "/pods".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let container = Container {
            linux: Some(LinuxContainer {
                namespaces,
                cgroups_path: "/pods/c".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let of = |kind| (pod.namespace_path(kind), container.namespace_path(kind));
        assert_eq!(of("network"), (Some("/run/netns/x"), Some("/run/netns/x")));
        assert_eq!((of("pid"), of("ipc")), ((None, None), (None, None)));
        assert_eq!(
            (pod.cgroup(), container.cgroup()),
            (Some("/pods"), Some("/pods/c"))
        );
    }

    #[test]
    fn the_last_of_several_variables_of_one_name_counts() {
        let container = Container {
            env: vec!["A=1".into(), "AB=2".into(), "A=x=y".into(), "NONE".into()],
            ..Default::default()
        };
        assert_eq!(container.env_var("A"), Some("x=y"));
        assert_eq!(container.env_var("NONE"), None);
    }

    #[test]
    fn what_was_set_is_read_and_what_was_not_is_none() {
        let mut update = update("c", false);
        assert_eq!(update.limits(), Limits::default());
        update.memory_limit(-1).memory_reservation(2).memory_swap(3);
        update.cpu_shares(4).cpu_quota(5).cpu_period(6);
        update.cpuset_cpus("7").cpuset_mems("8").pids_limit(9);
        update.rdt_class("ten").blockio_class("eleven");
        let expected = Limits {
            memory: Some(-1),
            memory_reservation: Some(2),
            memory_swap: Some(3),
            cpu_shares: Some(4),
            cpu_quota: Some(5),
            cpu_period: Some(6),
            cpus: Some("7"),
            mems: Some("8"),
            pids: Some(9),
            rdt_class: Some("ten"),
            blockio_class: Some("eleven"),
        };
        assert_eq!(update.limits(), expected);
    }
}
