//! ReopenContainerLog (CRI-138): the monitor reopens the path; bypasses the queue.

use proto_cri::v1 as cri;

use crate::pod::{
    error::{AtStep as _, Result},
    registry::Registry,
};

pub async fn reopen_container_log(
    pods: &Registry,
    request: cri::ReopenContainerLogRequest,
) -> Result<cri::ReopenContainerLogResponse> {
    let (_, container) = pods.container(&request.container_id)?;
    let monitor = container.running_monitor().await?;
    if container.cell.get().log_path.is_some() {
        let reopened = monitor.reopen_log().await;
        reopened.step(&format!("container {}: reopen log", container.id))?;
    }
    Ok(cri::ReopenContainerLogResponse {})
}
