//! ContainerStats (CRI-150, CRI-151).

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::{cri::statistics::Statistics, pod::error::Result};

pub async fn container_stats(
    statistics: &Arc<Statistics>,
    request: &cri::ContainerStatsRequest,
) -> Result<cri::ContainerStatsResponse> {
    let (_, container) = statistics.pods.registry.container(&request.container_id)?;
    let stats = statistics.of_containers(vec![container.cell.get()]).await;
    Ok(cri::ContainerStatsResponse {
        stats: stats.into_iter().next(),
    })
}
