//! RunPodSandbox (CRI-110 to CRI-113).

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::pod::{
    error::{Error, Result},
    run_pod_sandbox::RunPodSandbox,
};

pub async fn run_pod_sandbox(
    run: &Arc<RunPodSandbox>,
    request: cri::RunPodSandboxRequest,
) -> Result<cri::RunPodSandboxResponse> {
    let config = request
        .config
        .ok_or_else(|| Error::invalid("RunPodSandbox: config is missing"))?;
    let pod_sandbox_id = run.run(config, request.runtime_handler).await?;
    Ok(cri::RunPodSandboxResponse { pod_sandbox_id })
}
