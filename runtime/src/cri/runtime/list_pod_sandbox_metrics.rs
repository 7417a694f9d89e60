//! ListPodSandboxMetrics and StreamPodSandboxMetrics (CRI-120, CRI-157): of pods that are ready.

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::{cri::measure, pod::record::PodPhase, services::Services};

pub async fn list_pod_sandbox_metrics(services: &Arc<Services>) -> Vec<cri::PodSandboxMetrics> {
    let mut wanted = services.registry.pods();
    wanted.retain(|pod| pod.cell.get().phase == PodPhase::Ready);
    measure::metrics(services, &wanted).await
}
