//! A container's root: its image's read-only layers and its own writes, by overlayfs (CRI-450).
//!
//! It is described here, and mounted on the host only while the container's own mount namespace is
//! made (`pod/start_container.rs`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Uid};

use super::attributes::copy_attributes;
use super::copy_up::{CopyBudget, copy_up};
use super::overlay::{Overlay, Userns, view_of};
use super::uses::{begin_use, component, release};
use super::view::View;
use crate::image::digest::Digest;
use crate::image::error::{Error, blocking};
use crate::image::images::Images;
use crate::image::store::index::Store;
use crate::image::store::record::ImageRecord;
use crate::image::usage::{Usage, usage};
use crate::walk::Waiting;

/// Longest file read from a container's root: a passwd of some 20,000 accounts.
const TEXT_MAX: u64 = 1 << 20;

/// The trees of a container's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rootfs {
    /// Read-only trees, topmost first; never empty.
    pub lower: Vec<PathBuf>,
    /// The container's writes.
    pub upper: PathBuf,
    pub work: PathBuf,
}

impl Images {
    /// Makes the trees of a container's root, replacing those of the same id. They keep the image's
    /// layers until `release_rootfs` (CRI-175). `root`: the host's user and group of a user
    /// namespace's root, which owns the upper directory.
    pub async fn prepare_rootfs(
        &self,
        container_id: &str,
        image: &ImageRecord,
        root: Option<(u32, u32)>,
    ) -> Result<Rootfs, Error> {
        let dir = self.rootfs_dir(container_id)?;
        let store = self.0.store.clone();
        let (id, layers) = (image.id.clone(), image.layers.clone());
        blocking(move || {
            release(&store, &dir)?;
            let made = make_rootfs(&store, &dir, id, &layers, root);
            if made.is_err() {
                // The first error matters more.
                let _ = release(&store, &dir);
            }
            made
        })
        .await
    }

    /// The root of a container that was prepared earlier, also before a restart.
    pub fn find_rootfs(&self, container_id: &str) -> Result<Option<Rootfs>, Error> {
        let dir = self.rootfs_dir(container_id)?;
        let Some(layers) = self.0.store.layers_of_use(&dir) else {
            return Ok(None);
        };
        let lower = self.0.store.lowers(&layers)?;
        Ok(Some(Rootfs {
            lower,
            upper: dir.join("upper"),
            work: dir.join("work"),
        }))
    }

    /// Usage of the container's writes so far. Walks the tree: not for the hot path.
    pub async fn rootfs_usage(&self, container_id: &str) -> Result<Usage, Error> {
        let upper = self.rootfs_dir(container_id)?.join("upper");
        blocking(move || usage(&upper).map_err(Error::io("container root", "count", &upper))).await
    }

    /// The text of a file in the container's root, such as `/etc/passwd`, resolved as by overlayfs
    /// and never outside it. `None` if there is no such file.
    pub async fn rootfs_text(&self, rootfs: &Rootfs, path: &str) -> Result<Option<String>, Error> {
        let (trees, path) = (rootfs.trees(), PathBuf::from(path));
        blocking(move || {
            let text = View::open(&trees).and_then(|view| view.text(&path, TEXT_MAX));
            text.map_err(Error::io("container root", "read", &path))
        })
        .await
    }

    /// Fills empty directories with the image's content at these paths: the initial content of an
    /// image's `VOLUME`s (CRI-129), with one bound for all. Owners are the image's; in a user
    /// namespace the volume is mounted shifted. Ends when the caller leaves.
    pub async fn fill_volumes(
        &self,
        rootfs: &Rootfs,
        volumes: &BTreeMap<String, PathBuf>,
    ) -> Result<(), Error> {
        if volumes.is_empty() {
            return Ok(());
        }
        let (lowers, volumes) = (rootfs.lower.clone(), volumes.clone());
        let max_bytes = self.0.options.max_volume_bytes;
        let waiting = Waiting::default();
        let is_over = waiting.is_over();
        blocking(move || {
            let mut budget = CopyBudget::new(max_bytes, &is_over);
            let view = view_of(lowers, "an image's VOLUMEs")?;
            for (path, into) in &volumes {
                let path = Path::new(path);
                let done = copy_up(&view, path, into, &mut budget);
                done.map_err(Error::io("image VOLUME", "fill", path))?;
            }
            Ok(())
        })
        .await
    }

    /// Removes the container's root, its files in the background; a missing one counts as removed.
    /// The container and its mount must have ended.
    pub async fn release_rootfs(&self, container_id: &str) -> Result<(), Error> {
        let dir = self.rootfs_dir(container_id)?;
        let store = self.0.store.clone();
        blocking(move || release(&store, &dir)).await
    }

    fn rootfs_dir(&self, container_id: &str) -> Result<PathBuf, Error> {
        let own = self.0.options.roots_dir.join(component(container_id)?);
        Ok(own.join("rootfs"))
    }
}

/// Checks whether a container's root can be in `dir`, an existing directory of the caller. Mounts
/// nothing, but makes directories there. With a user namespace, kernel and file system must both
/// support shifted owners.
///
/// # Errors
/// The kernel refuses a step.
pub fn try_root_in(dir: &Path, userns: Option<Userns>) -> Result<(), Error> {
    let [lower, upper, work, view] = ["lower", "upper", "work", "view"].map(|n| dir.join(n));
    for made in [&lower, &upper, &work, &view] {
        fs::create_dir_all(made).map_err(Error::io("container root", "create", made))?;
    }
    let overlay = Overlay {
        lowers: vec![lower],
        upper: Some((&upper, &work)),
        userns,
        label: None,
        target: &view,
    };
    overlay.try_out()
}

impl Rootfs {
    /// All trees, topmost first.
    fn trees(&self) -> Vec<PathBuf> {
        let all = std::iter::once(&self.upper).chain(&self.lower);
        all.cloned().collect()
    }

    /// Mounts it in this process's mount namespace for a start, until the container has its own.
    /// `label`: the SELinux label of all its files.
    pub fn mount_at(
        &self,
        target: &Path,
        userns: Option<Userns>,
        label: Option<&str>,
    ) -> Result<(), Error> {
        let overlay = Overlay {
            lowers: self.lower.clone(),
            upper: Some((&self.upper, &self.work)),
            userns,
            label,
            target,
        };
        overlay.mount()
    }
}

fn make_rootfs(
    store: &Store,
    dir: &Path,
    image: Digest,
    layers: &[Digest],
    root: Option<(u32, u32)>,
) -> Result<Rootfs, Error> {
    let (upper, work) = (dir.join("upper"), dir.join("work"));
    begin_use(store, dir, image, layers)?;
    for made in [&upper, &work] {
        fs::create_dir(made).map_err(Error::io("container root", "create", made))?;
    }
    let lower = store.lowers(layers)?;
    prepare_upper(&lower, &upper, root).map_err(Error::io("container root", "prepare", &upper))?;
    Ok(Rootfs { lower, upper, work })
}

/// Gives the upper directory, which shows as `/`, owner, mode and attributes of the image's root
/// (CRI-451); in a user namespace its root owns it.
fn prepare_upper(lowers: &[PathBuf], upper: &Path, root: Option<(u32, u32)>) -> io::Result<()> {
    let upper: OwnedFd = File::open(upper)?.into();
    if let Some(top) = lowers.first() {
        copy_attributes(File::open(top)?, &upper)?;
    }
    if let Some((uid, gid)) = root {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::fchown(&upper, Some(uid), Some(gid))?;
    }
    Ok(())
}
