//! All steps of a pod's life, together: what a driver can run.

use std::sync::Arc;

use super::{
    container_exit::ContainerExit, create_container::CreateContainer,
    remove_container::RemoveContainer, remove_pod_sandbox::RemovePodSandbox,
    start_container::StartContainer, stop_container::StopContainer,
    stop_pod_sandbox::StopPodSandbox, update_container_resources::UpdateContainerResources,
    update_pod_sandbox_resources::UpdatePodSandboxResources,
};
use crate::{store::Unsynced, trace::EventLog};

/// The steps that a driver can run; each has what it needs.
pub struct Steps {
    pub stop_pod_sandbox: StopPodSandbox,
    pub remove_pod_sandbox: RemovePodSandbox,
    pub update_pod_sandbox_resources: UpdatePodSandboxResources,
    pub create_container: CreateContainer,
    pub start_container: StartContainer,
    pub stop_container: StopContainer,
    pub update_container_resources: UpdateContainerResources,
    pub remove_container: RemoveContainer,
    pub container_exit: Arc<ContainerExit>,
    pub log: EventLog,
    pub unsynced: Unsynced,
}
