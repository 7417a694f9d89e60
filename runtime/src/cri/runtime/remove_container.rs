//! RemoveContainer (CRI-134): a missing container is removed.

use proto_cri::v1 as cri;

use crate::pod::{
    error::{Kind, Result},
    registry::Registry,
    request::ContainerWork,
};

pub async fn remove_container(
    pods: &Registry,
    request: cri::RemoveContainerRequest,
) -> Result<cri::RemoveContainerResponse> {
    match pods.container(&request.container_id) {
        Ok((pod, container)) => {
            pod.ask_container(&container.id, ContainerWork::Remove)
                .await?;
        }
        Err(error) if error.kind == Kind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(cri::RemoveContainerResponse {})
}
