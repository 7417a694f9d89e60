//! What the runtime did, for the event log: steps of a pod's life between the contract points.

use super::{Container, Pod};

/// One step, done. Never an environment value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    SandboxBegun,
    Namespaces,
    Network { ips: Vec<String> },
    Paused { pid: u32 },
    Ready,
    SandboxFailed { reason: String },
    ContainerMade,
    Created { pid: u32 },
    Started,
    StartFailed { reason: String },
    Exited { code: i32, reason: String },
    Updated,
    Removed,
    NetworkGone,
    Stopped,
    SandboxRemoved,
}

/// Where steps are written down.
#[derive(Debug, Default)]
pub struct Journal {}

impl Journal {
    pub fn step(&self, pod: &Pod, container: Option<&Container>, step: Step) {
        tracing::debug!(pod = %pod.id, container = container.map(|c| c.id.as_str()), ?step);
    }
}
