//! ImageStatus (CRI-171, CRI-177): not present is OK without an image.

use std::collections::BTreeMap;

use proto_cri::v1 as cri;
use serde_json::json;

use super::list_images::message;
use crate::{
    pod::error::{Error, Result},
    services::Services,
};

pub fn image_status(
    services: &Services,
    request: &cri::ImageStatusRequest,
) -> Result<cri::ImageStatusResponse> {
    let wanted = request
        .image
        .as_ref()
        .map_or("", |image| image.image.as_str());
    if wanted.is_empty() {
        return Err(Error::invalid("ImageStatus: image is missing"));
    }
    let Some(image) = services
        .images
        .resolve(wanted)
        .map_err(|error| Error::invalid(error.to_string()))?
    else {
        return Ok(cri::ImageStatusResponse::default());
    };
    let mut info = BTreeMap::new();
    if request.verbose {
        let document = json!({ "chainID": image.layers.last(), "imageSpec": image.config });
        info.insert("info".to_owned(), document.to_string());
    }
    Ok(cri::ImageStatusResponse {
        image: Some(message(&image)),
        info,
    })
}
