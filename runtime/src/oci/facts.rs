//! Facts that the caller knows and this module may not look up: the sandbox, the host, the image, the policy.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use proto_cri::v1::{LinuxContainerResources, NamespaceOption, PodSandboxMetadata};
use serde::{Deserialize, Serialize};

use super::cdi::CdiRegistry;

/// One range of ids: `length` ids from `container_id` inside stand for those from `host_id` outside.
pub use proto_cri::v1::IdMapping as IdMap;

/// The pinned namespaces of a sandbox. `None` means that the sandbox uses the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxNamespaces {
    pub net: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    /// Of the pause process, where the pod shares a PID namespace.
    pub pid: Option<PathBuf>,
    /// Of a pod with a user namespace, which owns the others (CRI-225).
    pub user: Option<PathBuf>,
}

/// Host paths of the files that every container of the pod gets (CRI-202, CRI-204). They are bound as
/// they are: in a pod with a user namespace they belong to the id that its root is mapped to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxFiles {
    pub hostname: PathBuf,
    pub hosts: PathBuf,
    pub resolv_conf: PathBuf,
    /// The pod's tmpfs, or the host's `/dev/shm` where IPC is the host's.
    pub shm: PathBuf,
}

/// A sandbox as it stands; owned by the pod's driver.
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
    /// Configuration of the sandbox; a container's own options are checked against it.
    pub namespace_options: NamespaceOption,
    /// The pod's hostname, or the node's where the network is the host's: `HOSTNAME` (CRI-205).
    pub hostname: String,
    pub files: SandboxFiles,
    pub host_network: bool,
    pub log_directory: String,
    /// The single mapping of ids of a pod with a user namespace, for uids and gids alike.
    pub user_mapping: Option<IdMap>,
    pub privileged: bool,
    /// `None` where no labels are set.
    pub selinux: Option<SelinuxLabels>,
    /// Informational (CRI-234).
    pub overhead: Option<LinuxContainerResources>,
    pub resources: Option<LinuxContainerResources>,
    /// For hooks and status messages; empty for the host's network.
    pub ips: Vec<String>,
    /// Pid of the pause process, 0 where there is none or it is gone.
    pub pause_pid: u32,
}

/// Cgroup driver: cgroups are made by us, or by systemd on our behalf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

/// SELinux, as the host had it when the daemon started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelinuxFacts {
    /// Permissive denies nothing: a label that is not set harms nobody.
    pub enforcing: bool,
    /// What the policy has for containers, or why there is nothing.
    pub contexts: Result<SelinuxLabels, String>,
}

/// What processes and files are to SELinux, `user:role:type:level`: a pod's, a container's, or those that a policy has for
/// any container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelinuxLabels {
    pub process: String,
    pub file: String,
}

/// A device node of the host.
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
    /// Limits are written to v1 hierarchies, also where an empty v2 one is beside them (hybrid).
    pub cgroup_v1: bool,
    pub hugetlb: bool,
    /// The memory controller counts swap.
    pub swap: bool,
    /// The cpu controller gives time to real-time processes per cgroup (v1 with RT_GROUP_SCHED).
    pub realtime: bool,
    pub seccomp: bool,
    /// `None` where AppArmor is not enabled; else the name of our own profile, or why the daemon could not load it.
    pub apparmor: Option<Result<String, String>>,
    /// `None` where SELinux is not enabled.
    pub selinux: Option<SelinuxFacts>,
    /// `mount_setattr` with `AT_RECURSIVE` (Linux 5.12).
    pub recursive_readonly: bool,
    /// Reason why pods cannot have a user namespace here; `None` where they can, with roots and volumes whose owners are shifted.
    pub no_user_namespaces: Option<String>,
    /// resctrl is mounted: classes of cache and memory bandwidth can be had.
    pub resctrl: bool,
    /// The daemon's own `oom_score_adj`.
    pub oom_score_adj: i32,
    /// All device nodes of the host, for privileged containers. Without ptys, `/dev/shm` and the like.
    pub devices: Vec<HostDevice>,
}

/// Propagation of a mount point; the later is the stronger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Propagation {
    #[default]
    Private,
    Slave,
    Shared,
}

/// A host path that is about to be bound into a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindSource {
    /// With every symlink resolved (CRI-241).
    pub resolved: PathBuf,
    pub is_dir: bool,
    /// Propagation of the mount that contains `resolved`.
    pub propagation: Propagation,
    /// It is on a procfs.
    pub is_procfs: bool,
}

/// Where the destinations of mounts are in the container's root, the links of its image followed (CRI-248), by what
/// [`super::destinations`] answers; one that is not listed is where it is written.
pub type Places = BTreeMap<String, String>;

/// Look-ups on the host, implemented by the caller. Every answer is a fact of this moment.
pub trait HostView {
    /// The source of a bind mount, or `None` where it does not exist.
    fn bind_source(&self, host_path: &str) -> Option<BindSource>;

    /// The device node at `host_path` (a symlink is followed), or all nodes below it where it is a
    /// directory; empty where there is none. The `path` of a node below a directory starts with
    /// `host_path` as asked, or as [`HostView::bind_source`] resolves it.
    fn devices(&self, host_path: &str) -> Vec<HostDevice>;

    /// Whether the kernel has an AppArmor profile of this name.
    fn has_apparmor_profile(&self, _name: &str) -> bool {
        false
    }

    /// Whether the kernel's SELinux policy has this label.
    fn knows_selinux_label(&self, _label: &str) -> bool {
        false
    }

    /// The CDI devices of the host; asked only for a container that wants some.
    fn cdi(&self) -> CdiRegistry {
        CdiRegistry::default()
    }

    /// The type of the namespace that a file of the host stands for, as the kernel writes it (`net`), or empty where it
    /// does not say; `None` where there is no namespace.
    fn namespace(&self, _path: &str) -> Option<String> {
        Some(String::new())
    }

    /// The processors that are online, as the kernel lists them (`0-3,7`); empty where it does not say.
    fn online_cpus(&self) -> String {
        String::new()
    }

    /// The nodes that have memory, in the same form.
    fn memory_nodes(&self) -> String {
        String::new()
    }

    /// Open files that one process may have at most; no limit can be set above it.
    fn max_open_files(&self) -> u64 {
        u64::MAX
    }
}

/// Context in which an adjustment or limits are applied.
pub struct ApplyContext<'a> {
    pub host: &'a HostFacts,
    pub policy: &'a Policy,
    pub view: &'a dyn HostView,
    /// Of the mounts that are asked for.
    pub places: &'a Places,
}

/// The parts of an image configuration that a container inherits.
#[derive(Clone, Default)]
pub struct ImageFacts {
    /// Human reference, for the annotation `io.kubernetes.cri.image-name` and NRI.
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

/// The seccomp profile that counts.
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
    /// Of pods that name no handler; what is no handler's own is the same in all.
    pub default: Arc<Policy>,
    pub handlers: BTreeMap<String, Arc<Policy>>,
}

impl Policies {
    /// None for a handler that is not configured.
    pub fn get(&self, handler: &str) -> Option<&Arc<Policy>> {
        match handler {
            "" => Some(&self.default),
            name => self.handlers.get(name),
        }
    }

    /// That there is no such handler, and which there are.
    pub fn refusal(&self, handler: &str) -> String {
        let names: Vec<_> = self
            .handlers
            .keys()
            .map(|name| format!("{name:?}"))
            .collect();
        let there = if names.is_empty() {
            "there are none".to_owned()
        } else {
            format!("there are {}", names.join(", "))
        };
        format!(
            "runtime handler {handler:?}: there is none of this name ({there}; [handlers.{handler}] in cairn.toml makes it)"
        )
    }
}

/// Decisions of the operator.
#[derive(Clone, Debug)]
pub struct Policy {
    pub cgroup_driver: CgroupDriver,
    /// Used where the CRI client gives no cgroup parent. Absolute, or a slice with systemd.
    pub default_cgroup_parent: String,
    /// Meaning of an absent seccomp field. Unconfined by default (CRI-219).
    pub seccomp_when_absent: SeccompKind,
    /// Annotations with these prefixes go into the OCI spec (CRI-208).
    pub annotation_prefixes: Vec<String>,
    /// `type`, soft, hard. Empty means that the daemon's are inherited (CRI-235).
    pub rlimits: Vec<(String, u64, u64)>,
    /// Never ask for a lower score than the daemon's own (CRI-233).
    pub restrict_oom_score_adj: bool,
    /// Ignore huge page limits where the controller is missing (CRI-231).
    pub tolerate_missing_hugetlb: bool,
    pub ignore_image_volumes: bool,
    /// Devices belong to the container's user instead of the host's owner (CRI-226).
    pub device_ownership_from_user: bool,
    /// A privileged container gets no device of the host, and no rule that would let it make one.
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
            restrict_oom_score_adj: false,
            tolerate_missing_hugetlb: true,
            ignore_image_volumes: false,
            device_ownership_from_user: false,
            privileged_without_host_devices: false,
            default_masks: false,
        }
    }
}
