//! RemovePodSandbox (CRI-115): a missing sandbox is removed.

use proto_cri::v1 as cri;

use crate::{
    pod::{
        driver::Message,
        error::{Kind, Result},
    },
    services::Services,
};

pub async fn remove_pod_sandbox(
    services: &Services,
    request: cri::RemovePodSandboxRequest,
) -> Result<cri::RemovePodSandboxResponse> {
    match services.registry.pod(&request.pod_sandbox_id) {
        Ok(pod) => pod.ask(Message::RemovePod).await?,
        Err(error) if error.kind == Kind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(cri::RemovePodSandboxResponse {})
}
