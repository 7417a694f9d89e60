//! StopContainer (CRI-132): a missing container is stopped.

use std::time::Duration;

use proto_cri::v1 as cri;

use crate::pod::{
    error::{Kind, Result},
    registry::Registry,
    request::ContainerWork,
};

pub async fn stop_container(
    pods: &Registry,
    request: cri::StopContainerRequest,
) -> Result<cri::StopContainerResponse> {
    // Zero and less: kill at once.
    let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or(0));
    match pods.container(&request.container_id) {
        Ok((pod, container)) => {
            pod.ask_container(&container.id, ContainerWork::Stop { grace })
                .await?;
        }
        Err(error) if error.kind == Kind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(cri::StopContainerResponse {})
}
