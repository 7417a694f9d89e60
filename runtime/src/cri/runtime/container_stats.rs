//! ContainerStats (CRI-150, CRI-151).

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::{cri::measure, pod::error::Result, services::Services};

pub async fn container_stats(
    services: &Arc<Services>,
    request: &cri::ContainerStatsRequest,
) -> Result<cri::ContainerStatsResponse> {
    let (_, container) = services.registry.container(&request.container_id)?;
    let stats = measure::containers(services, vec![container.cell.get()]).await;
    Ok(cri::ContainerStatsResponse {
        stats: stats.into_iter().next(),
    })
}
