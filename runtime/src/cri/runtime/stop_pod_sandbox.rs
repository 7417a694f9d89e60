//! StopPodSandbox (CRI-114): a missing sandbox is stopped.

use proto_cri::v1 as cri;

use crate::pod::{
    error::{Kind, Result},
    registry::Registry,
    request::Message,
};

pub async fn stop_pod_sandbox(
    pods: &Registry,
    request: cri::StopPodSandboxRequest,
) -> Result<cri::StopPodSandboxResponse> {
    match pods.pod(&request.pod_sandbox_id) {
        Ok(pod) => pod.ask(Message::StopPod).await?,
        Err(error) if error.kind == Kind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(cri::StopPodSandboxResponse {})
}
