//! RunPodSandbox (CRI-110 to CRI-113).

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::{
    pod::{
        error::{Error, Result},
        start,
    },
    services::Services,
};

pub async fn run_pod_sandbox(
    services: &Arc<Services>,
    request: cri::RunPodSandboxRequest,
) -> Result<cri::RunPodSandboxResponse> {
    let config = request
        .config
        .ok_or_else(|| Error::invalid("RunPodSandbox: config is missing"))?;
    let pod_sandbox_id = start::run(services, config, request.runtime_handler).await?;
    Ok(cri::RunPodSandboxResponse { pod_sandbox_id })
}
