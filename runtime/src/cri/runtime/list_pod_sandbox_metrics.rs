//! ListPodSandboxMetrics and StreamPodSandboxMetrics (CRI-120, CRI-157): only ready pods.

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::{cri::statistics::Statistics, pod::record::PodPhase};

pub async fn list_pod_sandbox_metrics(statistics: &Arc<Statistics>) -> Vec<cri::PodSandboxMetrics> {
    let mut wanted = statistics.pods.registry.pods();
    wanted.retain(|pod| pod.cell.get().phase == PodPhase::Ready);
    statistics.metrics(&wanted).await
}
