//! CreateContainer (CRI-124 to CRI-130).

use proto_cri::v1 as cri;

use crate::{
    pod::{
        container::create::Request,
        driver::Message,
        error::{Error, Result},
    },
    services::Services,
};

pub async fn create_container(
    services: &Services,
    request: cri::CreateContainerRequest,
) -> Result<cri::CreateContainerResponse> {
    let pod = services.registry.pod(&request.pod_sandbox_id)?;
    let config = request
        .config
        .ok_or_else(|| Error::invalid("CreateContainer: config is missing"))?;
    let request = Request::check(config, request.sandbox_config, services.new_id()?)?;
    let container_id = pod
        .ask(|reply| Message::Create(Box::new(request), reply))
        .await?;
    Ok(cri::CreateContainerResponse { container_id })
}
