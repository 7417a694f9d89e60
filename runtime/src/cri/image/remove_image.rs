//! RemoveImage (CRI-175): a missing image is OK.

use proto_cri::v1 as cri;

use crate::{
    image::Images,
    pod::error::{Error, Result},
};

pub async fn remove_image(
    images: &Images,
    request: cri::RemoveImageRequest,
) -> Result<cri::RemoveImageResponse> {
    let wanted = request.image.map(|image| image.image).unwrap_or_default();
    if wanted.is_empty() {
        return Err(Error::invalid("RemoveImage: image is missing"));
    }
    images
        .remove(&wanted)
        .await
        .map_err(|error| Error::failed(format!("image {wanted:?}: remove: {error}")))?;
    Ok(cri::RemoveImageResponse {})
}
