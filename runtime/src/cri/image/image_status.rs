//! ImageStatus (CRI-171, CRI-177): a missing image is OK without an image.

use std::collections::BTreeMap;

use proto_cri::v1 as cri;
use serde_json::json;

use super::list_images::message;
use crate::{
    image::Images,
    pod::error::{AtStep, Error, Result},
};

pub async fn image_status(
    images: &Images,
    request: &cri::ImageStatusRequest,
) -> Result<cri::ImageStatusResponse> {
    let wanted = request
        .image
        .as_ref()
        .map_or("", |image| image.image.as_str());
    if wanted.is_empty() {
        return Err(Error::invalid("ImageStatus: image is missing"));
    }
    let Some(image) = images
        .resolve(wanted)
        .map_err(|error| Error::invalid(error.to_string()))?
    else {
        return Ok(cri::ImageStatusResponse::default());
    };
    let mut info = BTreeMap::new();
    if request.verbose {
        let config = images.config_json(&image.id).await;
        let config = config.step("image config")?.unwrap_or_default();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap_or_default();
        let document = json!({ "chainID": image.layers.last(), "imageSpec": config });
        info.insert("info".to_owned(), document.to_string());
    }
    Ok(cri::ImageStatusResponse {
        image: Some(message(&image)),
        info,
    })
}
