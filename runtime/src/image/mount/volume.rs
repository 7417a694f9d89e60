//! Image volumes: read-only views of images, mounted on the host and shared in a pod (CRI-245).

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::overlay::{Overlay, Userns};
use super::uses::{begin_use, component, release};
use crate::image::digest::Digest;
use crate::image::error::{Error, blocking};
use crate::image::images::Images;
use crate::image::store::index::Store;
use crate::image::store::record::ImageRecord;

impl Images {
    /// The host path of directory `sub_path`, which must exist, in the pod's view of an image
    /// (CRI-245); it never leaves the view. Mounts the view once, however often it is called.
    pub async fn mount_image_volume(
        &self,
        pod_id: &str,
        image: &ImageRecord,
        sub_path: &str,
        userns: Option<Userns>,
        label: Option<String>,
    ) -> Result<PathBuf, Error> {
        let dir = self.volumes_dir(pod_id)?.join(image.id.hex());
        let store = self.0.store.clone();
        let (id, layers, sub_path) = (image.id.clone(), image.layers.clone(), sub_path.to_owned());
        // Two containers of a pod may call at once; the second must find the first's mount.
        let lock = store.layer_lock(&Digest::of(dir.as_os_str().as_encoded_bytes()));
        let one = lock.lock_owned().await;
        blocking(move || {
            let _one = one;
            let merged = dir.join("merged");
            if !is_mounted(&merged) {
                release(&store, &dir)?;
                let made = make_volume(&store, &dir, id, &layers, userns, label.as_deref());
                if made.is_err() {
                    let _ = release(&store, &dir);
                }
                made?;
            }
            resolve_dir(&merged, &sub_path)
        })
        .await
    }

    /// Unmounts all image volumes of a pod, if any.
    pub async fn release_image_volumes(&self, pod_id: &str) -> Result<(), Error> {
        let volumes = self.volumes_dir(pod_id)?;
        let store = self.0.store.clone();
        blocking(move || {
            let failed = Error::io("image volumes", "release", &volumes);
            let entries = match fs::read_dir(&volumes) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                other => other.map_err(&failed)?,
            };
            for entry in entries {
                release(&store, &entry.map_err(&failed)?.path())?;
            }
            match fs::remove_dir(&volumes) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(e)),
                _ => Ok(()),
            }
        })
        .await
    }

    fn volumes_dir(&self, pod_id: &str) -> Result<PathBuf, Error> {
        Ok(self.0.options.volumes_dir.join(component(pod_id)?))
    }
}

fn make_volume(
    store: &Store,
    dir: &Path,
    image: Digest,
    layers: &[Digest],
    userns: Option<Userns>,
    label: Option<&str>,
) -> Result<(), Error> {
    let merged = dir.join("merged");
    begin_use(store, dir, image, layers)?;
    fs::create_dir(&merged).map_err(Error::io("image volume", "create", &merged))?;
    let mut lowers = store.lowers(layers)?;
    // Without an upper directory overlayfs requires two layers.
    lowers.push(store.root().join("empty"));
    let overlay = Overlay {
        lowers,
        upper: None,
        userns,
        label,
        target: &merged,
    };
    overlay.mount()
}

fn is_mounted(path: &Path) -> bool {
    let device = |p: &Path| fs::symlink_metadata(p).map(|m| m.dev());
    let parent = path.parent().map(device);
    matches!((device(path), parent), (Ok(here), Some(Ok(above))) if here != above)
}

/// The directory `sub_path` in a view, resolved inside it. The view is read-only, so that the
/// result stays valid.
fn resolve_dir(root: &Path, sub_path: &str) -> Result<PathBuf, Error> {
    if sub_path.is_empty() {
        return Ok(root.to_owned());
    }
    let refused = |why: String| {
        Error::Volume(format!(
            "sub path {:?}: {why}",
            sub_path.chars().take(100).collect::<String>()
        ))
    };
    if Path::new(sub_path)
        .components()
        .any(|c| c == Component::ParentDir)
    {
        return Err(refused("must not have `..`".into()));
    }
    let failed = |e: Errno| refused(io::Error::from(e).to_string());
    let root = File::open(root).map_err(|e| refused(e.to_string()))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let dir =
        rustix::fs::openat2(&root, sub_path, flags, Mode::empty(), resolve).map_err(failed)?;
    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    fs::read_link(link).map_err(|e| refused(e.to_string()))
}
