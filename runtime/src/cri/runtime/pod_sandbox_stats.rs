//! PodSandboxStats (CRI-156).

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::{
    cri::statistics::Statistics,
    pod::{
        error::{Error, Kind, Result},
        record::PodPhase,
    },
};

pub async fn pod_sandbox_stats(
    statistics: &Arc<Statistics>,
    request: &cri::PodSandboxStatsRequest,
) -> Result<cri::PodSandboxStatsResponse> {
    let pod = statistics.pods.registry.pod(&request.pod_sandbox_id)?;
    if pod.cell.get().phase != PodPhase::Ready {
        let text = format!("sandbox {}: statistics: it is not ready", pod.id);
        return Err(Error::new(Kind::WrongState, text));
    }
    let stats = statistics.of_pods(&[pod]).await;
    Ok(cri::PodSandboxStatsResponse {
        stats: stats.into_iter().next(),
    })
}
