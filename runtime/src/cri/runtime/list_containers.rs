//! ListContainers and StreamContainers (CRI-135, CRI-120): answered from memory.

use proto_cri::v1 as cri;

use crate::{cri::view, services::Services};

pub fn list_containers(
    services: &Services,
    filter: Option<&cri::ContainerFilter>,
) -> Vec<cri::Container> {
    services
        .registry
        .containers()
        .iter()
        .filter(|(pod, container)| view::container_passes(filter, pod, container))
        .map(|(_, container)| view::container(&container.cell.get()))
        .collect()
}
