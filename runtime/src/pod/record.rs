//! The records of pods and containers, which outlive the daemon. One record per object has its
//! immutable facts and its state; the specs, larger and seldom written, are beside it (`spec.rs`).

use std::{collections::BTreeMap, path::PathBuf};

use proto_cri::v1 as cri;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::{
    cgroup,
    oci::{SelinuxLabels, namespaces::user_mapping},
    store::Record,
};

/// The phase of a pod. Only the pod's driver and its steps change it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodPhase {
    /// RunPodSandbox is running: not listed (CRI-100, NRI-1114).
    #[default]
    Creating,
    Ready,
    /// Stopped, or found dead: listed NOTREADY, never ready again.
    NotReady,
}

/// Progress of an NRI hook, written before and after its dispatch (ARCHITECTURE.md, "Hooks across a
/// restart").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    #[default]
    None,
    Begun,
    Done,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodHooks {
    pub run: Mark,
    pub stop: Mark,
    pub remove: Mark,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerHooks {
    pub create: Mark,
    pub stop: Mark,
    pub remove: Mark,
}

/// A process that is never confused with another one of the same pid (CRI-813).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`, in clock ticks since boot.
    pub start_time: u64,
    pub boot_id: String,
}

impl Process {
    /// The path of its PID namespace, for a spec.
    pub fn pid_namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/pid", self.pid).into()
    }
}

/// JSON as received: its text is a fifth of the tree in memory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// # Errors
    /// For values without a JSON form.
    pub fn of(value: &impl Serialize) -> serde_json::Result<Self> {
        to_raw_value(value).map(Self)
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

/// The result of the network layer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodNetwork {
    /// Primary first.
    pub ips: Vec<String>,
    /// The CNI result, or an equivalent one from the built-in bridge.
    pub result: Json,
    /// Requests of the pod that the network does not serve, one line each (CRI-537).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Pinned namespaces; a missing one is the host's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespaces {
    pub net: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    pub user: Option<PathBuf>,
    /// The procfs of a shared PID namespace.
    pub procfs: Option<PathBuf>,
}

/// The default is a sandbox at the start of its creation, without resources.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PodRecord {
    pub id: String,
    pub config: cri::PodSandboxConfig,
    pub runtime_handler: String,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    pub phase: PodPhase,
    pub hooks: PodHooks,
    /// Parent of the containers' cgroups, absolute below the hierarchies.
    pub cgroup_parent: String,
    pub namespaces: Namespaces,
    /// The network was requested: it must be released, even without an answer.
    pub network_begun: bool,
    pub network: Option<PodNetwork>,
    /// Additional addresses from NRI plugins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugin_ips: Vec<String>,
    /// The pause process of a pod that shares its PID namespace.
    pub pause: Option<Process>,
    /// A step of a stop that failed; Stop and Remove resume there (invariant 7).
    #[serde(default)]
    pub failed_step: Option<String>,
    /// Set by UpdatePodSandboxResources (CRI-121).
    #[serde(default)]
    pub overhead: Option<cri::LinuxContainerResources>,
    #[serde(default)]
    pub resources: Option<cri::LinuxContainerResources>,
    pub boot_id: String,
    /// `None` where no SELinux labels are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux: Option<SelinuxLabels>,
}

impl Record for PodRecord {
    const KIND: &'static str = "pod";
    const SCHEMA: u32 = 1;

    fn id(&self) -> &str {
        &self.id
    }
}

impl PodRecord {
    pub fn metadata(&self) -> cri::PodSandboxMetadata {
        self.config.metadata.clone().unwrap_or_default()
    }

    pub fn linux(&self) -> cri::LinuxPodSandboxConfig {
        self.config.linux.clone().unwrap_or_default()
    }

    /// The NamespaceOption as requested; an absent chain means POD everywhere (CRI-200).
    pub fn namespace_options(&self) -> cri::NamespaceOption {
        self.config
            .linux
            .as_ref()
            .and_then(|linux| linux.security_context.as_ref())
            .and_then(|context| context.namespace_options.clone())
            .unwrap_or_default()
    }

    /// The host's uid and gid that root maps to in a pod with a user namespace.
    pub fn user_namespace_root(&self) -> Option<u32> {
        let map = user_mapping(&self.namespace_options());
        map.ok().flatten().map(|map| map.host_id)
    }

    /// Primary first.
    pub fn ips(&self) -> Vec<String> {
        let network = self.network.iter().flat_map(|network| &network.ips);
        network.chain(&self.plugin_ips).cloned().collect()
    }

    pub fn host_network(&self) -> bool {
        self.namespace_options().network() == cri::NamespaceMode::Node
    }

    /// The sandbox's own leaf, for the pause process. It also exists without one, to keep the pod's
    /// cgroup.
    pub fn cgroup_leaf(&self) -> String {
        cgroup::leaf(&self.cgroup_parent, &self.id)
    }

    /// `name_namespace_uid_attempt`, the tuple that is unique among existing sandboxes (CRI-110).
    pub fn name_key(&self) -> String {
        let metadata = self.metadata();
        format!(
            "{}_{}_{}_{}",
            metadata.name, metadata.namespace, metadata.uid, metadata.attempt
        )
    }
}

/// The phase of a container. Only the pod's driver and its steps change it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerPhase {
    /// CreateContainer is running: not listed.
    #[default]
    Creating,
    Created,
    Running,
    Exited,
    /// The monitor does not answer after a restart of the daemon.
    Unknown,
}

/// The image that the container was made from (CRI-143).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerImage {
    /// Exactly `Image.id`.
    pub id: String,
    /// First repo tag, else the requested name.
    pub name: String,
    /// First repo digest, else the id.
    pub reference: String,
    pub user_specified: String,
    pub annotations: BTreeMap<String, String>,
    pub runtime_handler: String,
}

/// The end of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: i32,
    /// CamelCase, as in ContainerStatus.reason.
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerUser {
    pub uid: i64,
    pub gid: i64,
    pub groups: Vec<i64>,
}

/// A plugin's request to have a container stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    pub plugin: String,
    pub reason: String,
}

/// The default is a container at the start of its creation, without resources.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub id: String,
    pub pod: String,
    pub config: cri::ContainerConfig,
    pub image: ContainerImage,
    pub created_at: i64,
    /// 0 until started.
    pub started_at: i64,
    /// 0 until exited.
    pub finished_at: i64,
    pub phase: ContainerPhase,
    pub exit: Exit,
    pub log_path: Option<PathBuf>,
    pub user: ContainerUser,
    /// The effective signal, as CRI's enum (CRI-143), and as the kernel's number.
    pub stop_signal: i32,
    pub stop_signal_number: i32,
    /// The effective resources, as ContainerStatus shows them.
    pub resources: cri::LinuxContainerResources,
    pub process: Option<Process>,
    pub hooks: ContainerHooks,
    /// Absolute below the hierarchies.
    pub cgroup: String,
    /// It is stopped, or never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicted: Option<Eviction>,
}

impl Record for ContainerRecord {
    const KIND: &'static str = "container";
    const SCHEMA: u32 = 1;

    fn id(&self) -> &str {
        &self.id
    }
}

impl ContainerRecord {
    pub fn metadata(&self) -> cri::ContainerMetadata {
        self.config.metadata.clone().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.config
            .metadata
            .as_ref()
            .map_or("", |metadata| metadata.name.as_str())
    }

    /// The newest of its times.
    pub fn newest_time(&self) -> i64 {
        self.created_at.max(self.started_at).max(self.finished_at)
    }

    /// Unique within a pod.
    pub fn name_key(&self) -> String {
        container_name_key(&self.metadata())
    }
}

/// `name_attempt`, unique within a pod.
pub fn container_name_key(metadata: &cri::ContainerMetadata) -> String {
    format!("{}_{}", metadata.name, metadata.attempt)
}
