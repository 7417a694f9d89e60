//! ListPodSandbox and StreamPodSandboxes (CRI-119, CRI-120): answered from memory.

use proto_cri::v1 as cri;

use crate::{cri::view, pod::registry::Registry};

pub fn list_pod_sandbox(
    pods: &Registry,
    filter: Option<&cri::PodSandboxFilter>,
) -> Vec<cri::PodSandbox> {
    let (pods, held) = (pods.pods(), pods.held());
    let served = pods.iter().map(|pod| view::pod(&pod.cell.get()));
    let held = held.pods.values().map(view::held_pod);
    let all = served.chain(held);
    all.filter(|pod| view::pod_passes(filter, pod)).collect()
}
