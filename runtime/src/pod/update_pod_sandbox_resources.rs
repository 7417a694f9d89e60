//! UpdatePodSandboxResources (CRI-121, NRI-1240): plugins may refuse it; the values are kept
//! for plugins and verbose status. The pod's cgroup is kubelet's.

use std::sync::Arc;

use proto_cri::v1 as cri;

use super::{error::Result, hooks::Hooks, state::Pod};

pub struct UpdatePodSandboxResources {
    pub hooks: Arc<Hooks>,
}

impl UpdatePodSandboxResources {
    /// # Errors
    /// A plugin's refusal, or a record that could not be written; nothing has changed then.
    pub async fn run(
        &self,
        pod: &Pod,
        request: cri::UpdatePodSandboxResourcesRequest,
    ) -> Result<()> {
        let (overhead, resources) = (request.overhead.as_ref(), request.resources.as_ref());
        self.hooks
            .update_pod_sandbox(pod, overhead, resources)
            .await
            .map_err(|error| error.at(&format!("sandbox {}: update resources", pod.id)))?;
        pod.cell
            .change(|record| {
                record.overhead = request.overhead.or(record.overhead.take());
                record.resources = request.resources.or(record.resources.take());
            })
            .await?;
        self.hooks.post_update_pod_sandbox(pod).await;
        Ok(())
    }
}
