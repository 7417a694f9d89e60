//! PullImage (CRI-170).

use proto_cri::v1 as cri;

use crate::{
    pod::error::{Error, Kind, Result},
    services::Services,
};

pub async fn pull_image(
    services: &Services,
    request: cri::PullImageRequest,
) -> Result<cri::PullImageResponse> {
    let _ = services;
    let wanted = request.image.map(|image| image.image).unwrap_or_default();
    Err(Error::new(
        Kind::Unsupported,
        format!("image \"{wanted}\": pull is not served yet"),
    ))
}
