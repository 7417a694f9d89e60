//! ReopenContainerLog (CRI-138): the monitor opens the path again; needs no queue.

use proto_cri::v1 as cri;

use crate::{
    pod::{
        container::exec::running_monitor,
        error::{Result, Step as _},
    },
    services::Services,
};

pub async fn reopen_container_log(
    services: &Services,
    request: cri::ReopenContainerLogRequest,
) -> Result<cri::ReopenContainerLogResponse> {
    let (_, container) = services.registry.container(&request.container_id)?;
    let monitor = running_monitor(&container)?;
    monitor
        .reopen_log()
        .await
        .step(&format!("container {}: reopen log", container.id))?;
    Ok(cri::ReopenContainerLogResponse {})
}
