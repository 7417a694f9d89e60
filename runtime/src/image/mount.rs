//! Views of images: a container's root, and read-only image volumes. Overlayfs both (CRI-450).
//!
//! ```text
//! <roots>/<id>/rootfs/              one container's: use.json, upper/, work/
//! <volumes>/<pod>/<image>/          one pod's view of an image: use.json, merged/ (mounted)
//! ```
//!
//! A container's root is described here, and mounted on the host only for the moment in which the
//! container's own mount namespace is made (`pod/start_container.rs`). An image volume is shared by
//! a pod's containers and stays mounted on the host.
//!
//! `use.json` names the layers before anything is mounted, so that a layer is kept while a view of
//! it may exist, also over a restart of the daemon. The file is not flushed: a view does not outlive
//! a power cut anyway, as its mount does not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};

use super::attributes::copy_attributes;
use super::digest::Digest;
use super::error::{Error, blocking};
use super::fsutil::{Usage, usage};
use super::images::Images;
use super::overlay::{Overlay, Userns};
use super::record::ImageRecord;
use super::store::Store;
use super::view::{CopyBudget, View};
use crate::replace;

const SCHEMA: u32 = 1;
/// Mounts on top of each other that a release takes away.
const STACKED_MAX: usize = 16;
/// Longest file read out of a container's root: a passwd of some 20,000 accounts.
const TEXT_MAX: u64 = 1 << 20;

/// A container's root file system: what its overlay is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rootfs {
    /// Read-only trees, topmost first; never empty.
    pub lower: Vec<PathBuf>,
    /// What the container writes.
    pub upper: PathBuf,
    pub work: PathBuf,
}

/// A read-only view of an image, or of a directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageMount {
    /// Path to bind into the container; never outside the view.
    pub path: PathBuf,
}

/// Who has views of images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse {
    pub containers: BTreeSet<String>,
    pub pods: BTreeSet<String>,
}

/// `use.json`.
#[derive(Serialize, Deserialize)]
struct Use {
    schema: u32,
    image: Digest,
    layers: Vec<Digest>,
}

impl Images {
    /// Makes what the container's root is mounted from, anew if something of that id is there. It
    /// keeps the image's layers until `release_rootfs` (CRI-175). `root` is the host's user and
    /// group of a user namespace's root, who gets the upper directory.
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
                // Its own error is worth less than the first.
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

    /// Containers that have a root here, and pods that have image volumes: whoever owns those ids
    /// releases what it does not know any more.
    pub fn in_use(&self) -> InUse {
        let mut found = InUse::default();
        for dir in self.0.store.uses() {
            let Some(parent) = dir.parent() else { continue };
            let Some(id) = parent.file_name().and_then(|n| n.to_str()) else {
                continue;
            };
            if parent.parent() == Some(&self.0.options.roots_dir) {
                found.containers.insert(id.to_owned());
            } else {
                found.pods.insert(id.to_owned());
            }
        }
        found
    }

    /// What the container has written so far. Walks the tree: not for the hot path.
    pub async fn rootfs_usage(&self, container_id: &str) -> Result<Usage, Error> {
        let upper = self.rootfs_dir(container_id)?.join("upper");
        blocking(move || usage(&upper).map_err(Error::io("container root", "count", &upper))).await
    }

    /// The text of a file in the container's root, such as `/etc/passwd`, resolved as overlayfs
    /// would show it and never outside it. None if there is no such file.
    pub async fn rootfs_text(&self, rootfs: &Rootfs, path: &str) -> Result<Option<String>, Error> {
        let (trees, path) = (rootfs.trees(), PathBuf::from(path));
        blocking(move || {
            let text = View::open(&trees).and_then(|view| view.text(&path, TEXT_MAX));
            text.map_err(Error::io("container root", "read", &path))
        })
        .await
    }

    /// Fills empty directories with what the image has at these paths: the first content of an image's
    /// `VOLUME`s (CRI-129), bounded for all of them together. Owners are the image's own; in a user
    /// namespace the volume is mounted shifted.
    pub async fn fill_volumes(
        &self,
        rootfs: &Rootfs,
        volumes: &BTreeMap<String, PathBuf>,
    ) -> Result<(), Error> {
        let (trees, volumes) = (rootfs.trees(), volumes.clone());
        let mut budget = CopyBudget::new(self.0.options.max_volume_bytes);
        blocking(move || {
            for (path, into) in &volumes {
                let path = Path::new(path);
                let done =
                    View::open(&trees).and_then(|view| view.copy_up(path, into, &mut budget));
                done.map_err(Error::io("image VOLUME", "fill", path))?;
            }
            Ok(())
        })
        .await
    }

    /// Removes the container's root; what is gone already is fine. Files go in the background. The
    /// container, and with it its mount, is gone before.
    pub async fn release_rootfs(&self, container_id: &str) -> Result<(), Error> {
        let dir = self.rootfs_dir(container_id)?;
        let store = self.0.store.clone();
        blocking(move || release(&store, &dir)).await
    }

    /// Moves a directory that is of no use any more out of sight and removes it in the background. One that cannot be moved
    /// stays.
    pub async fn discard(&self, dir: &Path) -> Result<(), Error> {
        let (store, dir) = (self.0.store.clone(), dir.to_owned());
        blocking(move || {
            if dir.exists() {
                store.scratch.discard(&dir);
            }
            Ok(())
        })
        .await
    }

    /// The pod's view of an image, mounted once however often it is asked for, and the directory
    /// `sub_path` in it, which must exist there (CRI-245).
    pub async fn mount_image_volume(
        &self,
        pod_id: &str,
        image: &ImageRecord,
        sub_path: &str,
        userns: Option<Userns>,
    ) -> Result<ImageMount, Error> {
        let dir = self.volumes_dir(pod_id)?.join(image.id.hex());
        let store = self.0.store.clone();
        let (id, layers, sub_path) = (image.id.clone(), image.layers.clone(), sub_path.to_owned());
        // Two containers of a pod may ask at once; the second must find the first's mount.
        let lock = store.layer_lock(&Digest::of(dir.as_os_str().as_encoded_bytes()));
        let _one = lock.lock_owned().await;
        blocking(move || {
            let merged = dir.join("merged");
            if !is_mounted(&merged) {
                release(&store, &dir)?;
                let made = make_volume(&store, &dir, id, &layers, userns);
                if made.is_err() {
                    let _ = release(&store, &dir);
                }
                made?;
            }
            Ok(ImageMount {
                path: resolve_dir(&merged, &sub_path)?,
            })
        })
        .await
    }

    /// Unmounts all image volumes of a pod; none is fine.
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

    fn rootfs_dir(&self, container_id: &str) -> Result<PathBuf, Error> {
        let own = self.0.options.roots_dir.join(component(container_id)?);
        Ok(own.join("rootfs"))
    }

    fn volumes_dir(&self, pod_id: &str) -> Result<PathBuf, Error> {
        Ok(self.0.volumes_dir().join(component(pod_id)?))
    }
}

/// Tries whether a container's root can lie in `dir`, an existing directory of the caller's; nothing
/// is mounted, but directories are made there. With a user namespace the owners of its image are
/// shifted, as the kernel and the file system must both know how.
///
/// # Errors
/// What the kernel said.
pub fn try_root_in(dir: &Path, userns: Option<Userns>) -> Result<(), Error> {
    let [lower, upper, work, view] = ["lower", "upper", "work", "view"].map(|n| dir.join(n));
    for made in [&lower, &upper, &work, &view] {
        fs::create_dir_all(made).map_err(Error::io("container root", "create", made))?;
    }
    let overlay = Overlay {
        lowers: vec![lower],
        upper: Some((&upper, &work)),
        userns,
    };
    overlay.try_at(&view)
}

/// An id is a file name: a single, plain component.
fn component(id: &str) -> Result<&str, Error> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if id.is_empty() || id.len() > 200 || id.starts_with('.') || !id.bytes().all(plain) {
        let path = PathBuf::from(id.chars().take(80).collect::<String>());
        let cause = "not an id".to_owned();
        return Err(Error::Io {
            object: "container or pod id",
            step: "use",
            path,
            cause,
        });
    }
    Ok(id)
}

impl Rootfs {
    /// All trees, topmost first.
    fn trees(&self) -> Vec<PathBuf> {
        [&self.upper]
            .into_iter()
            .chain(&self.lower)
            .cloned()
            .collect()
    }

    /// Mounts it in this process's mount namespace: for a start, until the container has its own.
    pub fn mount_at(&self, target: &Path, userns: Option<Userns>) -> Result<(), Error> {
        let upper = Some((&*self.upper, &*self.work));
        Overlay {
            lowers: self.lower.clone(),
            upper,
            userns,
        }
        .mount_at(target)
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
    dress_upper(&lower, &upper, root).map_err(Error::io("container root", "prepare", &upper))?;
    Ok(Rootfs { lower, upper, work })
}

fn make_volume(
    store: &Store,
    dir: &Path,
    image: Digest,
    layers: &[Digest],
    userns: Option<Userns>,
) -> Result<(), Error> {
    let merged = dir.join("merged");
    begin_use(store, dir, image, layers)?;
    fs::create_dir(&merged).map_err(Error::io("image volume", "create", &merged))?;
    let mut lowers = store.lowers(layers)?;
    // Overlayfs wants two layers when there is no upper one.
    lowers.push(store.root().join("empty"));
    Overlay {
        lowers,
        upper: None,
        userns,
    }
    .mount_at(&merged)
}

/// Makes the directory of a use, with the list of what it needs.
fn begin_use(store: &Store, dir: &Path, image: Digest, layers: &[Digest]) -> Result<(), Error> {
    let failed = Error::io("view of an image", "create", dir);
    store.add_use(dir, layers);
    fs::create_dir_all(dir).map_err(&failed)?;
    let list = Use {
        schema: SCHEMA,
        image,
        layers: layers.to_vec(),
    };
    let json = serde_json::to_vec(&list).map_err(|e| failed(e.into()))?;
    // One that cannot be read keeps every layer.
    replace::file(&dir.join("use.json"), &json).map_err(&failed)
}

/// The upper directory is what `/` looks like: it takes owner, mode and attributes of the image's
/// root (CRI-451), and in a user namespace belongs to its root.
fn dress_upper(lowers: &[PathBuf], upper: &Path, root: Option<(u32, u32)>) -> io::Result<()> {
    let upper: OwnedFd = File::open(upper)?.into();
    if let Some(top) = lowers.first() {
        copy_attributes(&File::open(top)?.into(), &upper)?;
    }
    if let Some((uid, gid)) = root {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::fchown(&upper, Some(uid), Some(gid))?;
    }
    Ok(())
}

/// Ends a use and removes its directory. Idempotent, also after a crash at any step.
fn release(store: &Arc<Store>, dir: &Path) -> Result<(), Error> {
    let merged = dir.join("merged");
    for _ in 0..STACKED_MAX {
        match rustix::mount::unmount(&merged, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => break,
            Err(e) => return Err(Error::io("view of an image", "unmount", &merged)(e.into())),
        }
    }
    if dir.exists() {
        store.scratch.discard(dir);
    }
    store.end_use(dir);
    // The container's own directory, once nothing else of it is there.
    if let Some(own) = dir.parent() {
        let _ = fs::remove_dir(own);
    }
    Ok(())
}

/// Registers what containers and volumes use, found by their `use.json`.
pub fn find_uses(store: &Store, containers: &Path, volumes: &Path) -> Result<(), Error> {
    for dir in [containers, volumes] {
        fs::create_dir_all(dir).map_err(Error::io("views of images", "create", dir))?;
    }
    let children = |dir: &Path| {
        let read = fs::read_dir(dir).map_err(Error::io("views of images", "read", dir));
        Ok::<_, Error>(read?.flatten().map(|e| e.path()))
    };
    let mut uses: Vec<_> = children(containers)?.map(|c| c.join("rootfs")).collect();
    for pod in children(volumes)?.filter(|p| p.is_dir()) {
        uses.extend(children(&pod)?);
    }
    for dir in uses {
        let json = match fs::read(dir.join("use.json")) {
            Ok(json) => json,
            Err(_) => continue,
        };
        match serde_json::from_slice::<Use>(&json) {
            Ok(found) if found.schema == SCHEMA => store.add_use(&dir, &found.layers),
            _ => {
                tracing::error!(dir = %dir.display(), "unreadable use.json: every layer is kept");
                store.freeze();
            }
        }
    }
    Ok(())
}

fn is_mounted(path: &Path) -> bool {
    let device =
        |p: &Path| fs::symlink_metadata(p).map(|m| std::os::unix::fs::MetadataExt::dev(&m));
    let parent = path.parent().map(device);
    matches!((device(path), parent), (Ok(here), Some(Ok(above))) if here != above)
}

/// The directory `sub_path` in a view, resolved without leaving it. The view is read-only, so the
/// answer stays true.
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
        .any(|c| c == std::path::Component::ParentDir)
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
