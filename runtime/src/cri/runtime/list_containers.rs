//! ListContainers and StreamContainers (CRI-135, CRI-120): answered from memory.

use proto_cri::v1 as cri;

use crate::{cri::view, pod::registry::Registry};

pub fn list_containers(
    pods: &Registry,
    filter: Option<&cri::ContainerFilter>,
) -> Vec<cri::Container> {
    let (containers, held) = (pods.containers(), pods.held());
    let served = containers
        .iter()
        .map(|(_, container)| view::container(&container.cell.get()));
    let held = held.containers.values().map(view::held_container);
    let all = served.chain(held);
    all.filter(|container| view::container_passes(filter, container))
        .collect()
}
