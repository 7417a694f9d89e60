//! StopPodSandbox (CRI-114): a missing sandbox is stopped.

use proto_cri::v1 as cri;

use crate::{
    pod::{
        driver::Message,
        error::{Kind, Result},
    },
    services::Services,
};

pub async fn stop_pod_sandbox(
    services: &Services,
    request: cri::StopPodSandboxRequest,
) -> Result<cri::StopPodSandboxResponse> {
    match services.registry.pod(&request.pod_sandbox_id) {
        Ok(pod) => pod.ask(Message::StopPod).await?,
        Err(error) if error.kind == Kind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(cri::StopPodSandboxResponse {})
}
