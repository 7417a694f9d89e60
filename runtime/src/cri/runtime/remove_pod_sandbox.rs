//! RemovePodSandbox (CRI-115): a missing sandbox is removed.

use proto_cri::v1 as cri;

use crate::pod::{
    error::{Kind, Result},
    registry::Registry,
    request::Message,
};

pub async fn remove_pod_sandbox(
    pods: &Registry,
    request: cri::RemovePodSandboxRequest,
) -> Result<cri::RemovePodSandboxResponse> {
    match pods.pod(&request.pod_sandbox_id) {
        Ok(pod) => pod.ask(Message::RemovePod).await?,
        Err(error) if error.kind == Kind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(cri::RemovePodSandboxResponse {})
}
