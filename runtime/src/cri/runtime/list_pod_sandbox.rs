//! ListPodSandbox and StreamPodSandboxes (CRI-119, CRI-120): answered from memory.

use proto_cri::v1 as cri;

use crate::{cri::view, services::Services};

pub fn list_pod_sandbox(
    services: &Services,
    filter: Option<&cri::PodSandboxFilter>,
) -> Vec<cri::PodSandbox> {
    services
        .registry
        .pods()
        .iter()
        .filter(|pod| view::pod_passes(filter, pod))
        .map(|pod| view::pod(&pod.cell.get()))
        .collect()
}
