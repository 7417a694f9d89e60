//! Uses of layers: `use.json` in the directory of each view of an image.
//!
//! ```text
//! <roots>/<id>/rootfs/              one container's: use.json, upper/, work/
//! <volumes>/<pod>/<image>/          one pod's view of an image: use.json, merged/ (mounted)
//! ```
//!
//! `use.json` names the layers before anything is mounted, so that a layer is kept while a view of
//! it may exist, also across a restart of the daemon. The file is not flushed: like its mount, a
//! view does not survive a power cut.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_monitor::own_file;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};

use crate::image::digest::Digest;
use crate::image::error::Error;
use crate::image::images::Images;
use crate::image::store::index::Store;
use crate::replace;

const SCHEMA: u32 = 1;
/// The most stacked mounts that a release unmounts.
const STACKED_MAX: usize = 16;

/// Users of image views.
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
    /// Containers that have a root here, and pods that have image volumes. The owner of those ids
    /// releases the ones that it does not know.
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
}

/// Checks that an id is a plain file name.
pub(crate) fn component(id: &str) -> Result<&str, Error> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if id.is_empty() || id.len() > 200 || id.starts_with('.') || !id.bytes().all(plain) {
        let path = PathBuf::from(id.chars().take(80).collect::<String>());
        let failed = Error::io("container or pod id", "use", &path);
        return Err(failed(io::Error::other("not an id")));
    }
    Ok(id)
}

/// Makes the directory of a use, with the list of its layers.
pub(crate) fn begin_use(
    store: &Store,
    dir: &Path,
    image: Digest,
    layers: &[Digest],
) -> Result<(), Error> {
    let failed = Error::io("view of an image", "create", dir);
    store.add_use(dir, layers);
    fs::create_dir_all(dir).map_err(&failed)?;
    let list = Use {
        schema: SCHEMA,
        image,
        layers: layers.to_vec(),
    };
    let json = serde_json::to_vec(&list).map_err(|e| failed(e.into()))?;
    // An unreadable one keeps every layer.
    replace::file(&dir.join("use.json"), &json).map_err(&failed)
}

/// Ends a use and removes its directory. Idempotent, also after a crash at any step.
pub(crate) fn release(store: &Arc<Store>, dir: &Path) -> Result<(), Error> {
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
    // The container's own directory, if it is empty now.
    if let Some(own) = dir.parent() {
        let _ = fs::remove_dir(own);
    }
    Ok(())
}

/// Registers the uses of containers and volumes by their `use.json`.
pub(crate) fn find_uses(store: &Store, containers: &Path, volumes: &Path) -> Result<(), Error> {
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
        let found = match own_file::read(dir.join("use.json")) {
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                continue;
            }
            Err(e) => Err(e),
            Ok(json) => serde_json::from_slice::<Use>(&json).map_err(io::Error::from),
        };
        match found {
            Ok(found) if found.schema == SCHEMA => store.add_use(&dir, &found.layers),
            _ => {
                tracing::error!(dir = %dir.display(), "unreadable use.json: every layer is kept");
                store.freeze();
            }
        }
    }
    Ok(())
}
