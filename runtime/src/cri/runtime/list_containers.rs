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
        .map(|(_, container)| container.cell.get())
        .filter(|record| view::container_passes(filter, record))
        .map(|record| view::container(&record));
    let held = held.containers.values();
    let held = held.filter(|held| view::held_container_passes(filter, held));
    served.chain(held.map(view::held_container)).collect()
}
