//! StartContainer (CRI-131).

use proto_cri::v1 as cri;

use crate::{
    pod::{driver::ContainerWork, error::Result},
    services::Services,
};

pub async fn start_container(
    services: &Services,
    request: cri::StartContainerRequest,
) -> Result<cri::StartContainerResponse> {
    let (pod, container) = services.registry.container(&request.container_id)?;
    pod.ask_container(&container.id, ContainerWork::Start)
        .await?;
    Ok(cri::StartContainerResponse {})
}
