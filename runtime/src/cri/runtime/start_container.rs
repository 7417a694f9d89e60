//! StartContainer (CRI-131).

use proto_cri::v1 as cri;

use crate::pod::{error::Result, registry::Registry, request::ContainerWork};

pub async fn start_container(
    pods: &Registry,
    request: cri::StartContainerRequest,
) -> Result<cri::StartContainerResponse> {
    let (pod, container) = pods.container(&request.container_id)?;
    pod.ask_container(&container.id, ContainerWork::Start)
        .await?;
    Ok(cri::StartContainerResponse {})
}
