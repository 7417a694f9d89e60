//! Image content beside a container's root: a directory for each VOLUME, and mounted images.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs,
    path::{Path, PathBuf},
};

use proto_cri::v1 as cri;

use super::{
    dirs::Dirs,
    error::{AtStep as _, Error, Kind, Result},
    state::Pod,
};
use crate::{
    blocking::blocking,
    image::{Images, Rootfs},
    store::make_private,
};

/// Mounted images by container path: the tree to bind, and the image's id.
pub(super) type ImageMounts = BTreeMap<String, (PathBuf, String)>;

/// CRI-129: a directory below `dir` for each of these paths, filled with the image's content.
///
/// # Errors
/// The path that cannot be made, or the path of the image that cannot be read.
#[expect(clippy::disallowed_methods, reason = "in blocking()")]
pub(super) async fn fill(
    images: &Images,
    paths: impl IntoIterator<Item = String>,
    dir: &Path,
    rootfs: &Rootfs,
) -> Result<BTreeMap<String, PathBuf>> {
    let mut prepared = BTreeMap::new();
    for (number, path) in paths.into_iter().enumerate() {
        let what = format!("image VOLUME {path:?}");
        let dir = dir.join(number.to_string());
        let made = dir.clone();
        blocking(move || fs::create_dir_all(made))
            .await
            .step(&what)?;
        prepared.insert(path, dir);
    }
    let filled = images.fill_volumes(rootfs, &prepared).await;
    filled.step("image")?;
    Ok(prepared)
}

/// CRI-245: mounts each image.
///
/// # Errors
/// Names the mount, in kubelet's words.
pub(super) async fn mount(
    images: &Images,
    dirs: &Dirs,
    pod: &Pod,
    config: &cri::ContainerConfig,
) -> Result<ImageMounts> {
    let mut mounted = ImageMounts::new();
    for mount in &config.mounts {
        let Some(wanted) = mount.image.as_ref().map(|image| image.image.as_str()) else {
            continue;
        };
        let path = &mount.container_path;
        let failed = |cause: &dyn Display| {
            let text = format!("ImageVolumeMountFailed: mount {path}: {cause}");
            Error::new(Kind::Verbatim, text)
        };
        let image = images
            .resolve(wanted)
            .map_err(|error| failed(&error))?
            .ok_or_else(|| failed(&format!("image {wanted:?} is not present")))?;
        let userns = pod.user_namespace().map_err(|error| failed(&error))?;
        let record = pod.cell.get();
        let passes = record.user_namespace_root();
        make_private(&dirs.image_volumes(&pod.id), passes).map_err(|error| failed(&error))?;
        // The label of the pod, because its containers share the view.
        let label = record.selinux.as_ref().map(|labels| labels.file.clone());
        let tree = images
            .mount_image_volume(&pod.id, &image, &mount.image_sub_path, userns, label)
            .await
            .map_err(|error| failed(&error))?;
        mounted.insert(path.clone(), (tree, image.id.to_string()));
    }
    Ok(mounted)
}
