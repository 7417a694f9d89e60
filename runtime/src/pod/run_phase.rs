//! The phases of RunPodSandbox and what each is called: at its fault point, in its span, and where its undo failed. What is
//! done in them is in `run_pod_sandbox.rs`.

use crate::{
    fault,
    oci::{PidSharing, SandboxPlan},
};

/// How far a sandbox has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The name and the record are ours.
    Record,
    /// The pod's cgroup is there.
    Cgroup,
    /// Namespaces are pinned, `lo` is up, hostname, sysctls and files are set.
    Namespaces,
    /// Addresses are assigned.
    Network,
    /// The pause process runs, where the pod shares its PID namespace.
    Pause,
    /// It is on record that plugins will be asked.
    HookBegun,
    /// Every plugin agreed (NRI-1110 to NRI-1117).
    Hook,
    /// It is listed from now on.
    Ready,
}

/// In order.
pub(super) const PHASES: [Phase; 8] = [
    Phase::Record,
    Phase::Cgroup,
    Phase::Namespaces,
    Phase::Network,
    Phase::Pause,
    Phase::HookBegun,
    Phase::Hook,
    Phase::Ready,
];

impl Phase {
    /// Where a test makes the daemon fail before it.
    ///
    /// # Errors
    /// A test made it.
    pub(super) async fn fault(self) -> std::result::Result<(), fault::Fired> {
        match self {
            Self::Record => fault::pass("pod.start.reserved").await,
            Self::Cgroup => fault::pass("pod.start.cgroup").await,
            Self::Namespaces => fault::pass("pod.start.netns").await,
            Self::Network => fault::pass("pod.start.network").await,
            Self::Pause => fault::pass("pod.start.pause").await,
            Self::HookBegun => fault::pass("pod.start.hook").await,
            Self::Hook => Ok(()),
            Self::Ready => fault::pass("pod.start.ready").await,
        }
    }

    /// Its span; of the others there is nothing to see, or there are those of plugins.
    pub(super) fn step(self, plan: &SandboxPlan) -> Option<&'static str> {
        match self {
            Self::Cgroup => Some("make the cgroup"),
            Self::Namespaces => Some("make namespaces"),
            Self::Network => Some("attach the network"),
            Self::Pause if plan.pid == PidSharing::Pod => Some("start the pause process"),
            Self::Pause | Self::Record | Self::HookBegun | Self::Hook | Self::Ready => None,
        }
    }

    /// What is left where its undo failed.
    pub(super) fn leaves(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Cgroup => "cgroup",
            Self::Namespaces => "namespaces",
            Self::Network => "network",
            Self::Pause => "pause",
            Self::HookBegun | Self::Hook | Self::Ready => "hook",
        }
    }
}
