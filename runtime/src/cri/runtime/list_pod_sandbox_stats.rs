//! ListPodSandboxStats and StreamPodSandboxStats (CRI-120, CRI-156): only ready pods.

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::cri::{statistics::Statistics, view};

pub async fn list_pod_sandbox_stats(
    statistics: &Arc<Statistics>,
    filter: Option<cri::PodSandboxStatsFilter>,
) -> Vec<cri::PodSandboxStats> {
    let filter = filter.unwrap_or_default();
    let filter = cri::PodSandboxFilter {
        id: filter.id,
        label_selector: filter.label_selector,
        state: Some(cri::PodSandboxStateValue {
            state: cri::PodSandboxState::SandboxReady.into(),
        }),
    };
    let mut wanted = statistics.pods.registry.pods();
    wanted.retain(|pod| view::pod_passes(Some(&filter), &pod.cell.get()));
    statistics.of_pods(&wanted).await
}
