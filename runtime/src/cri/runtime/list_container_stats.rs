//! ListContainerStats and StreamContainerStats (CRI-120, CRI-150).

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::cri::{statistics::Statistics, view};

pub async fn list_container_stats(
    statistics: &Arc<Statistics>,
    filter: Option<cri::ContainerStatsFilter>,
) -> Vec<cri::ContainerStats> {
    let filter = filter.map(|filter| cri::ContainerFilter {
        id: filter.id,
        pod_sandbox_id: filter.pod_sandbox_id,
        label_selector: filter.label_selector,
        state: None,
    });
    let wanted = statistics
        .pods
        .registry
        .containers()
        .iter()
        .map(|(_, container)| container.cell.get())
        .filter(|record| view::container_passes(filter.as_ref(), record))
        .collect();
    statistics.of_containers(wanted).await
}
