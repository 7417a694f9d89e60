//! CreateContainer (CRI-124 to CRI-130).

use proto_cri::v1 as cri;

use crate::pod::{
    error::{Error, Result},
    registry::{Registry, new_id},
    request::{CreateContainerRequest, Message},
};

pub async fn create_container(
    pods: &Registry,
    request: cri::CreateContainerRequest,
) -> Result<cri::CreateContainerResponse> {
    let pod = pods.pod(&request.pod_sandbox_id)?;
    let config = request
        .config
        .ok_or_else(|| Error::invalid("CreateContainer: config is missing"))?;
    let request = CreateContainerRequest::check(config, request.sandbox_config, new_id()?)?;
    let container_id = pod
        .ask(|reply| Message::Create(Box::new(request), reply))
        .await?;
    Ok(cri::CreateContainerResponse { container_id })
}
