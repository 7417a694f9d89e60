//! UpdatePodSandboxResources (CRI-121, NRI-1240): plugins may reject it; the values are kept for
//! plugins and verbose status. Kubelet owns the pod's cgroup.

use proto_cri::v1 as cri;

use super::{error::Result, pods::Pods, state::Pod};

/// # Errors
/// A plugin's veto, or a record that could not be written; then nothing has changed.
pub async fn run(
    cx: &Pods,
    pod: &Pod,
    request: &cri::UpdatePodSandboxResourcesRequest,
) -> Result<()> {
    let (overhead, resources) = (request.overhead.as_ref(), request.resources.as_ref());
    let hooks = &cx.notices.hooks;
    hooks
        .update_pod_sandbox(pod, overhead, resources)
        .await
        .map_err(|error| error.at(&format!("sandbox {}: update resources", pod.id)))?;
    pod.cell
        .change(|record| {
            record.overhead = request.overhead.clone().or(record.overhead.take());
            record.resources = request.resources.clone().or(record.resources.take());
        })
        .await?;
    hooks.post_update_pod_sandbox(pod).await;
    Ok(())
}
