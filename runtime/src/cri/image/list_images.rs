//! ListImages and StreamImages (CRI-172 to CRI-174).

use proto_cri::v1 as cri;

use crate::{
    image::{ImageRecord, Images},
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

/// The same for every reference of the image (CRI-171).
pub fn message(image: &ImageRecord) -> cri::Image {
    let (uid, username) = user(&image.run.user);
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

/// The user of an image's config, without group: a number, or a name in the image (CRI-173).
fn user(text: &str) -> (Option<cri::Int64Value>, String) {
    let (user, _group) = text.split_once(':').unwrap_or((text, ""));
    match user.parse::<u32>() {
        Ok(id) => (Some(cri::Int64Value { value: id.into() }), String::new()),
        Err(_) => (None, user.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_number_or_a_name_with_an_optional_group() {
        let id = |value| (Some(cri::Int64Value { value }), String::new());
        let name = |name: &str| (None, name.to_owned());
        assert_eq!(user(""), name(""));
        assert_eq!(user("1002"), id(1002));
        assert_eq!(user("www-data"), name("www-data"));
        assert_eq!(user("1003:1004"), id(1003));
        assert_eq!(user("www-data:www"), name("www-data"));
        assert_eq!(user("5000000000"), name("5000000000"));
    }
}
