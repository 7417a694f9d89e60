//! UpdateContainerResources (CRI-137).

use proto_cri::v1 as cri;

use crate::pod::{error::Result, registry::Registry, request::ContainerWork};

pub async fn update_container_resources(
    pods: &Registry,
    request: cri::UpdateContainerResourcesRequest,
) -> Result<cri::UpdateContainerResourcesResponse> {
    let (pod, container) = pods.container(&request.container_id)?;
    pod.ask_container(&container.id, ContainerWork::Update(Box::new(request)))
        .await?;
    Ok(cri::UpdateContainerResourcesResponse {})
}
