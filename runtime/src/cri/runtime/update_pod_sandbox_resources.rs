//! UpdatePodSandboxResources (CRI-121, NRI-1240).

use proto_cri::v1 as cri;

use crate::pod::{error::Result, registry::Registry, request::Message};

pub async fn update_pod_sandbox_resources(
    pods: &Registry,
    request: cri::UpdatePodSandboxResourcesRequest,
) -> Result<cri::UpdatePodSandboxResourcesResponse> {
    let pod = pods.pod(&request.pod_sandbox_id)?;
    pod.ask(|reply| Message::UpdatePod(Box::new(request), reply))
        .await?;
    Ok(cri::UpdatePodSandboxResourcesResponse {})
}
