//! Facts about the sandbox, the host, the image and the policy, provided by the caller.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use proto_cri::v1::{LinuxContainerResources, NamespaceOption, PodSandboxMetadata};
use serde::{Deserialize, Serialize};

use super::cdi::CdiRegistry;

/// One range of ids: `length` ids from `container_id` inside map to those from `host_id` outside.
pub use proto_cri::v1::IdMapping as IdMap;

/// The pinned namespaces of a sandbox. `None` means that the sandbox uses the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxNamespaces {
    pub net: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    /// Of the pause process, if the pod shares a PID namespace.
    pub pid: Option<PathBuf>,
    /// Of a pod with a user namespace, which owns the others (CRI-225).
    pub user: Option<PathBuf>,
}

/// Host paths of the files that every container of the pod gets (CRI-202, CRI-204). They are bound
/// unmapped: in a pod with a user namespace they belong to the id that its root maps to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxFiles {
    pub hostname: PathBuf,
    pub hosts: PathBuf,
    pub resolv_conf: PathBuf,
    /// The pod's tmpfs, or the host's `/dev/shm` with host IPC.
    pub shm: PathBuf,
}

/// The current facts of a sandbox; owned by the pod's driver.
#[derive(Clone, Debug, Default)]
pub struct SandboxFacts {
    pub id: String,
    pub metadata: PodSandboxMetadata,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub runtime_handler: String,
    /// As the CRI client gave it; empty means [`Policy::default_cgroup_parent`].
    pub cgroup_parent: String,
    pub namespaces: SandboxNamespaces,
    /// Options of the sandbox; a container's options are checked against them.
    pub namespace_options: NamespaceOption,
    /// The pod's hostname, or the node's with host network: `HOSTNAME` (CRI-205).
    pub hostname: String,
    pub files: SandboxFiles,
    pub host_network: bool,
    pub log_directory: String,
    /// The mapping of a pod with a user namespace, for uids and gids alike.
    pub user_mapping: Option<IdMap>,
    pub privileged: bool,
    /// `None` if no labels are set.
    pub selinux: Option<SelinuxLabels>,
    /// Informational (CRI-234).
    pub overhead: Option<LinuxContainerResources>,
    pub resources: Option<LinuxContainerResources>,
    /// For hooks and status messages; empty with host network.
    pub ips: Vec<String>,
    /// Pid of the pause process; 0 if there is none or it has ended.
    pub pause_pid: u32,
}

/// Cgroup driver: the daemon creates cgroups itself, or through systemd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

/// SELinux on the host when the daemon started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelinuxFacts {
    /// Permissive mode denies nothing, so that a missing label does no harm.
    pub enforcing: bool,
    /// The policy's labels for containers, or the reason why there are none.
    pub contexts: Result<SelinuxLabels, String>,
}

/// SELinux labels `user:role:type:level` of processes and files: a pod's, a container's, or a
/// policy's for any container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelinuxLabels {
    pub process: String,
    pub file: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDevice {
    pub path: PathBuf,
    /// `b`, `c` or `p`.
    pub kind: char,
    pub major: i64,
    pub minor: i64,
    /// Permission bits only.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// Facts about the host and the daemon's own process.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// The capabilities that the daemon holds, as the kernel's bit mask. "All" means these.
    pub capabilities: u64,
    /// Limits are written to v1 hierarchies, also beside an empty v2 one (hybrid).
    pub cgroup_v1: bool,
    pub hugetlb: bool,
    /// The memory controller counts swap.
    pub swap: bool,
    /// The cpu controller assigns real-time per cgroup (v1 with RT_GROUP_SCHED).
    pub realtime: bool,
    pub seccomp: bool,
    /// `None` if AppArmor is disabled; else the name of our profile, or why it could not be loaded.
    pub apparmor: Option<Result<String, String>>,
    /// `None` if SELinux is disabled.
    pub selinux: Option<SelinuxFacts>,
    /// `mount_setattr` with `AT_RECURSIVE` (Linux 5.12).
    pub recursive_readonly: bool,
    /// The reason why pods cannot have a user namespace; `None` if they can, with idmapped mounts.
    pub no_user_namespaces: Option<String>,
    /// resctrl is mounted: classes of cache and memory bandwidth are available.
    pub resctrl: bool,
    /// The daemon's own `oom_score_adj`.
    pub oom_score_adj: i32,
    /// All device nodes of the host, except ptys, `/dev/shm` and similar ones, for privileged
    /// containers.
    pub devices: Vec<HostDevice>,
}

/// Propagation of a mount point; a later one is stronger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Propagation {
    #[default]
    Private,
    Slave,
    Shared,
}

/// A host path to be bound into a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindSource {
    /// With every symlink resolved (CRI-241).
    pub resolved: PathBuf,
    pub is_dir: bool,
    /// Propagation of the mount that contains `resolved`.
    pub propagation: Propagation,
    /// The path is on a procfs.
    pub is_procfs: bool,
}

/// Look-ups on the host, implemented by the caller. An answer holds for the moment only.
pub trait HostView {
    /// The source of a bind mount, or `None` if it does not exist.
    fn bind_source(&self, host_path: &str) -> Option<BindSource>;

    /// As [`HostView::bind_source`], but a missing one is made first, as a directory (CRI-241).
    /// `None` if that is not possible.
    fn made_source(&self, host_path: &str) -> Option<BindSource> {
        self.bind_source(host_path)
    }

    /// The device node at `host_path` (symlinks are followed) or, for a directory, all nodes below
    /// it; empty if none exists. The `path` of a node below a directory starts with `host_path` as
    /// requested, or as [`HostView::bind_source`] resolves it.
    fn devices(&self, host_path: &str) -> Vec<HostDevice>;

    /// Whether the kernel has an AppArmor profile of this name.
    fn has_apparmor_profile(&self, _name: &str) -> bool {
        false
    }

    /// Whether the kernel's SELinux policy has this label.
    fn knows_selinux_label(&self, _label: &str) -> bool {
        false
    }

    /// The CDI devices of the host; called only if a container requests some.
    fn cdi(&self) -> CdiRegistry {
        CdiRegistry::default()
    }

    /// The kernel's name for the type of the namespace at this path (`net`), empty if unknown;
    /// `None` if the path is not a namespace.
    fn namespace(&self, _path: &str) -> Option<String> {
        Some(String::new())
    }

    /// The online processors in the kernel's form (`0-3,7`); empty if unknown.
    fn online_cpus(&self) -> String {
        String::new()
    }

    /// The nodes that have memory, in the same form.
    fn memory_nodes(&self) -> String {
        String::new()
    }

    /// The most open files of one process; no limit can be above it.
    fn max_open_files(&self) -> u64 {
        u64::MAX
    }
}

/// Context in which an adjustment or limits are applied.
pub struct ApplyContext<'a> {
    pub host: &'a HostFacts,
    pub policy: &'a Policy,
    pub view: &'a dyn HostView,
}

/// The parts of an image configuration that a container inherits.
#[derive(Clone, Default)]
pub struct ImageFacts {
    /// Reference for the annotation `io.kubernetes.cri.image-name` and NRI.
    pub name: String,
    /// `repo@sha256:...`, may be empty.
    pub digest: String,
    /// `sha256:...` of the configuration: the image id.
    pub config_digest: String,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    pub user: String,
    pub working_dir: String,
    pub volumes: Vec<String>,
    pub stop_signal: String,
}

impl std::fmt::Debug for ImageFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageFacts")
            .field("name", &self.name)
            .field("config_digest", &self.config_digest)
            .field("user", &self.user)
            .field("env", &format_args!("{} variables", self.env.len()))
            .finish_non_exhaustive()
    }
}

/// The effective seccomp profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SeccompKind {
    #[default]
    Unconfined,
    RuntimeDefault,
    /// Absolute path of a JSON file on the host, which the caller reads.
    Localhost(String),
}

/// Decisions of the operator, by runtime handler (CRI-209).
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// For pods that name no handler. Handlers share every value that they do not set themselves.
    pub default: Arc<Policy>,
    pub handlers: BTreeMap<String, Arc<Policy>>,
}

impl Policies {
    /// `None` for a handler that is not configured.
    pub fn get(&self, handler: &str) -> Option<&Arc<Policy>> {
        match handler {
            "" => Some(&self.default),
            name => self.handlers.get(name),
        }
    }

    /// The error for an unknown handler, with the names of the known ones.
    pub fn refusal(&self, handler: &str) -> String {
        let names: Vec<_> = self
            .handlers
            .keys()
            .map(|name| format!("{name:?}"))
            .collect();
        let known = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        format!(
            "runtime handler {handler:?} not found (configured: {known}; \
             add [handlers.{handler}] to cairn.toml)"
        )
    }
}

/// Decisions of the operator.
#[derive(Clone, Debug)]
pub struct Policy {
    pub cgroup_driver: CgroupDriver,
    /// Used if the CRI client sends no cgroup parent. Absolute, or a slice with systemd.
    pub default_cgroup_parent: String,
    /// Profile for an absent seccomp field. Unconfined by default (CRI-219).
    pub seccomp_when_absent: SeccompKind,
    /// Annotations with these prefixes go into the OCI spec (CRI-208).
    pub annotation_prefixes: Vec<String>,
    /// `type`, soft, hard. Empty means that the daemon's limits are inherited (CRI-235).
    pub rlimits: Vec<(String, u64, u64)>,
    /// Devices belong to the container's user, not to the host's owner (CRI-226).
    pub device_ownership_from_user: bool,
    /// A privileged container gets no host device, and no rule that would let it make one.
    pub privileged_without_host_devices: bool,
    /// An empty list of masked or read-only paths means containerd's default.
    pub default_masks: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            cgroup_driver: CgroupDriver::Cgroupfs,
            default_cgroup_parent: "/".to_owned(),
            seccomp_when_absent: SeccompKind::Unconfined,
            annotation_prefixes: Vec::new(),
            rlimits: Vec::new(),
            device_ownership_from_user: false,
            privileged_without_host_devices: false,
            default_masks: false,
        }
    }
}
