//! UpdateContainerResources (CRI-137).

use proto_cri::v1 as cri;

use crate::{
    pod::{driver::ContainerWork, error::Result},
    services::Services,
};

pub async fn update_container_resources(
    services: &Services,
    request: cri::UpdateContainerResourcesRequest,
) -> Result<cri::UpdateContainerResourcesResponse> {
    let (pod, container) = services.registry.container(&request.container_id)?;
    pod.ask_container(&container.id, ContainerWork::Update(Box::new(request)))
        .await?;
    Ok(cri::UpdateContainerResourcesResponse {})
}
