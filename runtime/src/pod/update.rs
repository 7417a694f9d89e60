//! UpdatePodSandboxResources (CRI-121, NRI-1240): plugins may refuse it; the values are kept
//! for plugins and verbose status. The pod's cgroup is kubelet's.

use std::sync::Arc;

use proto_cri::v1 as cri;

use super::{Pod, error::Result};

/// # Errors
/// A plugin's refusal, or a record that could not be written; nothing has changed then.
pub async fn update(
    pod: Arc<Pod>,
    request: Box<cri::UpdatePodSandboxResourcesRequest>,
) -> Result<()> {
    let hooks = &pod.services.hooks;
    hooks
        .update_pod(&pod, request.overhead.as_ref(), request.resources.as_ref())
        .await
        .map_err(|error| error.at(&format!("sandbox {}: update resources", pod.id)))?;
    pod.cell
        .change(|record| {
            record.overhead = request.overhead.or(record.overhead.take());
            record.resources = request.resources.or(record.resources.take());
        })
        .await?;
    hooks.post_update_pod(&pod).await;
    Ok(())
}
