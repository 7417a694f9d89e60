//! ListPodSandbox and StreamPodSandboxes (CRI-119, CRI-120): answered from memory.

use proto_cri::v1 as cri;

use crate::{cri::view, pod::registry::Registry};

pub fn list_pod_sandbox(
    pods: &Registry,
    filter: Option<&cri::PodSandboxFilter>,
) -> Vec<cri::PodSandbox> {
    let (pods, held) = (pods.pods(), pods.held());
    let served = pods
        .iter()
        .map(|pod| pod.cell.get())
        .filter(|record| view::pod_passes(filter, record))
        .map(|record| view::pod(&record));
    let held = held.pods.values();
    let held = held.filter(|held| view::held_pod_passes(filter, held));
    served.chain(held.map(view::held_pod)).collect()
}
