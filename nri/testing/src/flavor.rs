//! The fields that two runtimes add: annotations, labels, cgroups, namespaces, mounts. A given
//! value stays.
//!
//! containerd: `internal/cri/nri/nri_api_linux.go` of 2.x, the annotations of its spec over the
//! pod's and the container's. CRI-O: the annotations `io.kubernetes.cri-o.*` of its spec.

use nri::{
    NRI_VERSION,
    proto::{
        Container, LinuxContainer, LinuxNamespace, LinuxPodSandbox, Mount, OptionalInt, PodSandbox,
    },
};
use serde::Deserialize;

use super::objects::add_missing;

/// The runtime whose fields are simulated. Scenarios of nri-bench use the same words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavor {
    /// Given fields only.
    #[default]
    Plain,
    /// As containerd 2.x with the systemd cgroup driver.
    Containerd,
    /// As CRI-O 1.3x with the systemd cgroup driver.
    CriO,
}

impl Flavor {
    /// Name and version sent to plugins.
    pub(super) fn identity(self) -> (&'static str, &'static str) {
        match self {
            Self::Plain => ("nri-testing", NRI_VERSION),
            Self::Containerd => ("containerd", "v2.2.0"),
            Self::CriO => ("cri-o", "1.34.0"),
        }
    }

    pub(super) fn fill_pod(self, pod: &mut PodSandbox) {
        if self == Self::Plain {
            return;
        }
        let (id, uid) = (pod.id.clone(), pod.uid.replace('-', "_"));
        let slice = format!("kubepods-besteffort-pod{uid}.slice");
        let (name, namespace) = (pod.name.clone(), pod.namespace.clone());
        add_missing(
            &mut pod.labels,
            &[
                ("io.kubernetes.pod.name", &name),
                ("io.kubernetes.pod.namespace", &namespace),
                ("io.kubernetes.pod.uid", &pod.uid),
            ],
        );
        let linux = pod.linux.get_or_insert_default();
        or(&mut linux.cgroup_parent, || {
            format!("/kubepods.slice/kubepods-besteffort.slice/{slice}")
        });
        match self {
            Self::CriO => {
                add_missing(
                    &mut pod.annotations,
                    &[("kubernetes.io/config.source", "api")],
                );
                or(&mut linux.cgroups_path, || format!("{slice}:crio:{id}"));
            }
            _ => {
                add_missing(&mut pod.labels, &[("io.cri-containerd.kind", "sandbox")]);
                add_missing(
                    &mut pod.annotations,
                    &[
                        ("io.kubernetes.cri.container-type", "sandbox"),
                        ("io.kubernetes.cri.sandbox-id", &id),
                        ("io.kubernetes.cri.sandbox-name", &name),
                        ("io.kubernetes.cri.sandbox-namespace", &namespace),
                        ("io.kubernetes.cri.sandbox-uid", &pod.uid),
                    ],
                );
                or(&mut linux.cgroups_path, || {
                    format!("{slice}:cri-containerd:{id}")
                });
            }
        }
        fill_namespaces(linux, &id);
    }

    pub(super) fn fill_container(self, pod: &PodSandbox, container: &mut Container) {
        if self == Self::Plain {
            return;
        }
        let (id, name) = (container.id.clone(), container.name.clone());
        add_missing(
            &mut container.labels,
            &[
                ("io.kubernetes.container.name", &name),
                ("io.kubernetes.pod.name", &pod.name),
                ("io.kubernetes.pod.namespace", &pod.namespace),
                ("io.kubernetes.pod.uid", &pod.uid),
            ],
        );
        match self {
            Self::CriO => add_missing(
                &mut container.annotations,
                &[
                    ("io.kubernetes.cri-o.ContainerID", &id),
                    ("io.kubernetes.cri-o.ContainerName", &name),
                    ("io.kubernetes.cri-o.ContainerType", "container"),
                    ("io.kubernetes.cri-o.SandboxID", &pod.id),
                    ("io.kubernetes.cri-o.SandboxName", &pod.name),
                ],
            ),
            _ => {
                add_missing(
                    &mut container.labels,
                    &[("io.cri-containerd.kind", "container")],
                );
                add_missing(
                    &mut container.annotations,
                    &[
                        ("io.kubernetes.cri.container-name", &name),
                        ("io.kubernetes.cri.container-type", "container"),
                        ("io.kubernetes.cri.sandbox-id", &pod.id),
                        ("io.kubernetes.cri.sandbox-name", &pod.name),
                        ("io.kubernetes.cri.sandbox-namespace", &pod.namespace),
                        ("io.kubernetes.cri.sandbox-uid", &pod.uid),
                    ],
                );
            }
        }
        if !container.env.iter().any(|e| e.starts_with("HOSTNAME=")) {
            container.env.push(format!("HOSTNAME={}", pod.name));
        }
        for (destination, kind, options) in KERNEL_MOUNTS {
            if !container
                .mounts
                .iter()
                .any(|m| m.destination == *destination)
            {
                container.mounts.push(Mount {
                    destination: (*destination).into(),
                    r#type: (*kind).into(),
                    source: (*kind).into(),
                    options: options.iter().map(ToString::to_string).collect(),
                });
            }
        }
        fill_linux(self, pod, &id, container.linux.get_or_insert_default());
    }
}

const KERNEL_MOUNTS: &[(&str, &str, &[&str])] = &[
    ("/proc", "proc", &["nosuid", "noexec", "nodev"]),
    (
        "/dev",
        "tmpfs",
        &["nosuid", "strictatime", "mode=755", "size=65536k"],
    ),
    ("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
    ("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    (
        "/sys/fs/cgroup",
        "cgroup",
        &["nosuid", "noexec", "nodev", "relatime", "ro"],
    ),
];

fn fill_namespaces(linux: &mut LinuxPodSandbox, id: &str) {
    for kind in ["network", "ipc", "uts"] {
        if !linux.namespaces.iter().any(|n| n.r#type == kind) {
            linux.namespaces.push(LinuxNamespace {
                r#type: kind.into(),
                path: format!("/run/nri-testing/{kind}-{}", &id[..8.min(id.len())]),
            });
        }
    }
}

fn fill_linux(flavor: Flavor, pod: &PodSandbox, id: &str, linux: &mut LinuxContainer) {
    let prefix = match flavor {
        Flavor::CriO => "crio",
        _ => "cri-containerd",
    };
    let slice = pod.linux.as_ref().map_or("", |l| l.cgroup_parent.as_str());
    let slice = slice.rsplit('/').next().unwrap_or_default();
    or(&mut linux.cgroups_path, || format!("{slice}:{prefix}:{id}"));
    linux
        .oom_score_adj
        .get_or_insert(OptionalInt { value: 1000 });
    if linux.namespaces.is_empty() {
        let of_pod = pod.linux.as_ref().map(|l| l.namespaces.clone());
        linux.namespaces = of_pod.unwrap_or_default();
        for kind in ["pid", "mount", "cgroup"] {
            linux.namespaces.push(LinuxNamespace {
                r#type: kind.into(),
                path: String::new(),
            });
        }
    }
}

fn or(field: &mut String, value: impl FnOnce() -> String) {
    if field.is_empty() {
        *field = value();
    }
}
