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
        .filter(|(pod, container)| view::container_passes(filter, pod, container))
        .map(|(_, container)| view::container(&container.cell.get()));
    let held = held
        .containers
        .values()
        .filter(|held| view::held_container_passes(filter, held))
        .map(view::held_container);
    served.chain(held).collect()
}
