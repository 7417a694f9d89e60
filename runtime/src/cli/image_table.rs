//! The output of `cairn image ls` and `rm`. Pure: CRI's lists in, text out.

use proto_cri::v1 as cri;
use serde::Serialize;

use super::text::{clean, lines, short_id, size};

const HEAD: [&str; 5] = ["IMAGE", "ID", "SIZE", "CONTAINERS", "PINNED"];

#[derive(Debug, Serialize)]
pub(super) struct Image {
    pub id: String,
    pub tags: Vec<String>,
    pub digests: Vec<String>,
    /// Compressed, as transferred.
    pub size_bytes: u64,
    pub pinned: bool,
    /// Ids of its containers.
    pub containers: Vec<String>,
}

/// Sorted by name; images without one come last.
pub(super) fn images(images: Vec<cri::Image>, containers: &[cri::Container]) -> Vec<Image> {
    let listed = images.into_iter().map(|image| {
        let users = users(&image.id, containers).into_iter();
        Image {
            containers: users.map(|container| container.id.clone()).collect(),
            id: image.id,
            tags: image.repo_tags,
            digests: image.repo_digests,
            size_bytes: image.size,
            pinned: image.pinned,
        }
    });
    let mut listed: Vec<_> = listed.collect();
    listed.sort_by(|a, b| {
        let key = |image: &Image| (image.tags.is_empty(), image.tags.clone(), image.id.clone());
        key(a).cmp(&key(b))
    });
    listed
}

/// The containers of an image.
pub(super) fn users<'a>(id: &str, containers: &'a [cri::Container]) -> Vec<&'a cri::Container> {
    let uses = |container: &&cri::Container| {
        container.image_id == id || container.image_id.is_empty() && container.image_ref == id
    };
    containers.iter().filter(uses).collect()
}

/// `web (1a2b3c4d5e6f7), side (…)`.
pub(super) fn named(containers: &[&cri::Container]) -> String {
    let names = containers.iter().map(|container| {
        let name = container.metadata.as_ref().map_or("", |m| m.name.as_str());
        format!("{} ({})", clean(name), short_id(&container.id))
    });
    names.collect::<Vec<_>>().join(", ")
}

/// The table for people: a line per name.
pub(super) fn table(images: &[Image]) -> String {
    if images.is_empty() {
        return "there is no image\n".to_owned();
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    for image in images {
        let nameless = [nameless(image)];
        let names = if image.tags.is_empty() {
            &nameless[..]
        } else {
            &image.tags[..]
        };
        rows.extend(names.iter().map(|name| {
            [
                clean(name),
                short_id(&image.id).to_owned(),
                size(image.size_bytes),
                image.containers.len().to_string(),
                if image.pinned { "yes" } else { "" }.to_owned(),
            ]
        }));
    }
    lines(&rows)
}

/// The shortened digest of its pull, or nothing.
fn nameless(image: &Image) -> String {
    let Some((name, digest)) = image.digests.first().and_then(|d| d.split_once('@')) else {
        return "-".to_owned();
    };
    format!("{name}@sha256:{}…", short_id(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tags: &[&str], digests: &[&str]) -> cri::Image {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        cri::Image {
            id: format!("sha256:{}", id.repeat(64)),
            repo_tags: owned(tags),
            repo_digests: owned(digests),
            size: 2_500_000,
            pinned: id == "a",
            ..Default::default()
        }
    }

    fn container(name: &str, image: &str) -> cri::Container {
        cri::Container {
            id: name.repeat(64),
            metadata: Some(cri::ContainerMetadata {
                name: name.into(),
                attempt: 0,
            }),
            image_id: format!("sha256:{}", image.repeat(64)),
            ..Default::default()
        }
    }

    #[test]
    fn each_name_has_a_line_and_what_has_none_is_told_by_its_digest() {
        let digest = format!("r/z@sha256:{}", "e".repeat(64));
        let all = vec![
            image("c", &[], &[]),
            image("b", &[], &[&digest]),
            image("a", &["r/app:1", "r/app:latest"], &[]),
        ];
        let users = [container("x", "a"), container("y", "a")];
        let text = table(&images(all, &users));
        assert_eq!(
            text,
            "\
IMAGE                      ID             SIZE    CONTAINERS  PINNED
r/app:1                    aaaaaaaaaaaaa  2.5 MB  2           yes
r/app:latest               aaaaaaaaaaaaa  2.5 MB  2           yes
r/z@sha256:eeeeeeeeeeeee…  bbbbbbbbbbbbb  2.5 MB  0
-                          ccccccccccccc  2.5 MB  0
"
        );
        assert_eq!(table(&[]), "there is no image\n");
    }

    #[test]
    fn those_who_use_an_image_are_named() {
        let all = [container("x", "a"), container("y", "b")];
        let users = users(&format!("sha256:{}", "a".repeat(64)), &all);
        assert_eq!(named(&users), "x (xxxxxxxxxxxxx)");
    }
}
