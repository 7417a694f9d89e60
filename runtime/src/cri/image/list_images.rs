//! ListImages and StreamImages (CRI-172 to CRI-174).

use proto_cri::v1 as cri;

use crate::{
    image::{ImageRecord, Images, Named},
    pod::error::{Error, Result},
};

pub fn list_images(images: &Images, filter: Option<&cri::ImageFilter>) -> Result<Vec<cri::Image>> {
    let wanted = filter
        .and_then(|filter| filter.image.as_ref())
        .map_or("", |image| image.image.as_str());
    if wanted.is_empty() {
        return Ok(images.list().iter().map(|i| message(i)).collect());
    }
    let found = images
        .resolve(wanted)
        .map_err(|error| Error::invalid(error.to_string()))?;
    Ok(found.iter().map(|image| message(image)).collect())
}

/// The same whichever reference was asked for (CRI-171).
pub fn message(image: &ImageRecord) -> cri::Image {
    let (uid, username) = match image.user().user {
        Some(Named::Id(id)) => (Some(cri::Int64Value { value: id.into() }), String::new()),
        Some(Named::Name(name)) => (None, name),
        None => (None, String::new()),
    };
    cri::Image {
        id: image.id.to_string(),
        repo_tags: image.repo_tags.clone(),
        repo_digests: image.repo_digests.clone(),
        size: image.size,
        uid,
        username,
        spec: None,
        pinned: image.pinned,
    }
}
