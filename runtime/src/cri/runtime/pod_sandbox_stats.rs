//! PodSandboxStats (CRI-156).

use std::sync::Arc;

use proto_cri::v1 as cri;

use crate::{
    cri::measure,
    pod::{
        error::{Error, Kind, Result},
        record::PodPhase,
    },
    services::Services,
};

pub async fn pod_sandbox_stats(
    services: &Arc<Services>,
    request: &cri::PodSandboxStatsRequest,
) -> Result<cri::PodSandboxStatsResponse> {
    let pod = services.registry.pod(&request.pod_sandbox_id)?;
    if pod.cell.get().phase != PodPhase::Ready {
        let text = format!("sandbox {}: statistics: it is not ready", pod.id);
        return Err(Error::new(Kind::WrongState, text));
    }
    let stats = measure::pods(services, &[pod]).await;
    Ok(cri::PodSandboxStatsResponse {
        stats: stats.into_iter().next(),
    })
}
