//! The handle to all images: operations that need the store alone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::digest::Digest;
use super::error::{Error, blocking};
use super::flights::{Flights, PullUnderWay};
use super::reference::Reference;
use super::registry::host::Clients;
use super::store::index::Store;
use super::store::record::ImageRecord;
use super::turns::{self, Turns};
use super::unpack::limits::TreeBounds;
use crate::host::lookup::Lookups;

#[derive(Debug, Clone)]
pub struct Options {
    /// `<root>/roots`: `<id>/rootfs` below it is made and removed here.
    pub roots_dir: PathBuf,
    /// Mount points of image volumes; may be on another file system, best one cleared by a reboot.
    pub volumes_dir: PathBuf,
    /// Program and leading arguments of the unpack helper: `[<cairn>, "unpack"]`.
    pub unpack_helper: Vec<OsString>,
    /// Directory in which each pull looks for `<host>/hosts.toml` (CRI-410).
    pub registry_config_dir: PathBuf,
    pub lookups: Lookups,
    /// Layers transferred and unpacked at once.
    pub turns: turns::Bounds,
    pub image: TreeBounds,
    /// The most bytes of the initial content of one container's VOLUMEs.
    pub max_volume_bytes: u64,
    /// A transfer without a byte, or a helper that takes none, fails after this time (CRI-406).
    pub progress_timeout: Duration,
    /// By registry: hosts of further token services that may get its credentials.
    pub token_services: BTreeMap<String, Vec<String>>,
    /// Images to pin on arrival, by full reference (CRI-178).
    pub pinned: Vec<Reference>,
}

/// Disk usage of the layers (CRI-176).
#[derive(Debug, Clone)]
pub struct FsInfo {
    /// A directory of the file system with the layers.
    pub mountpoint: PathBuf,
    pub used_bytes: u64,
    pub inodes_used: u64,
}

#[derive(Clone)]
pub struct Images(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) store: Arc<Store>,
    /// One is taken while a layer is transferred and unpacked.
    pub(super) turns: Arc<Turns>,
    pub(super) options: Options,
    pub(super) clients: Arc<Clients>,
    pub(super) flights: Flights,
    /// Locked while an archive takes room: all of it is on the disk beside the unpacked image.
    pub(super) imports: tokio::sync::Mutex<()>,
}

impl Shared {
    /// Pins a new image if one of its names is configured.
    pub(super) async fn pin_if_configured(
        &self,
        names: &[Reference],
        id: &Digest,
    ) -> Result<(), Error> {
        let pinned = &self.options.pinned;
        if !names.iter().any(|name| pinned.contains(name)) {
            return Ok(());
        }
        let (store, id) = (self.store.clone(), id.clone());
        blocking(move || store.pin(&id)).await
    }
}

impl Images {
    /// The image for `text`: an id with or without `sha256:`, a reference in any form, or the
    /// beginning of an id (CRI-171). `None` if it is not here, or if the text is invalid.
    pub fn resolve(&self, text: &str) -> Result<Option<Arc<ImageRecord>>, Error> {
        let store = &self.0.store;
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        if let Ok(id) = Digest::from_hex(hex) {
            return Ok(store.get(&id));
        }
        if let Ok(reference) = text.parse::<Reference>() {
            let found = store.named(&reference);
            if found.is_some() {
                return Ok(found);
            }
        }
        if hex.is_empty() || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(None);
        }
        let mut short = store
            .list()
            .into_iter()
            .filter(|i| i.id.hex().starts_with(hex));
        match (short.next(), short.next()) {
            (_, Some(_)) => Err(Error::Ambiguous(hex.to_owned())),
            (found, None) => Ok(found),
        }
    }

    /// The unchanged config of an image (CRI-177).
    pub async fn config_json(&self, id: &Digest) -> Result<Option<String>, Error> {
        let (store, id) = (self.0.store.clone(), id.clone());
        blocking(move || store.config_json(&id)).await
    }

    /// All images, by id; one entry per image (CRI-174).
    pub fn list(&self) -> Vec<Arc<ImageRecord>> {
        self.0.store.list()
    }

    /// Removes the image for `text` with all its names; a missing one counts as removed (CRI-175).
    /// Layers that a container or volume uses stay until the use ends.
    pub async fn remove(&self, text: &str) -> Result<(), Error> {
        let Some(image) = self.resolve(text)? else {
            return Ok(());
        };
        let store = self.0.store.clone();
        blocking(move || store.remove(&image.id)).await
    }

    /// Pulls in progress, with their progress (CRI-909).
    pub fn pulls(&self) -> Vec<PullUnderWay> {
        self.0.flights.under_way()
    }

    /// Moves an unneeded directory to the trash and removes it in the background. If it cannot be
    /// moved, it stays and the cause is logged.
    pub async fn discard(&self, dir: &Path) {
        let (store, dir) = (self.0.store.clone(), dir.to_owned());
        let discarding = blocking(move || {
            if dir.exists() {
                store.scratch.discard(&dir);
            }
            Ok(())
        });
        // Only a panic is an error; the directory stays then.
        let _ = discarding.await;
    }

    /// From memory: layers are counted when they are unpacked.
    pub fn fs_info(&self) -> FsInfo {
        let (used_bytes, inodes_used) = self.0.store.usage();
        FsInfo {
            mountpoint: self.0.store.root().to_owned(),
            used_bytes,
            inodes_used,
        }
    }
}
