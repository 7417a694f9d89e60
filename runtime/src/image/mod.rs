//! Images: references, pull, import, unpack, store, mounts.
//!
//! ```text
//!  pull ──► registry ─┐                        ┌─► layer ──► `cairn unpack` (own process)
//!           import  ──┴─► manifest ─► ingest ──┤
//!                                              └─► store: records, layers, who uses what
//!                        container root, image volume ◄── mount ◄┘
//! ```
//!
//! An image *is* its config: its id is the config's digest, and everything else (tags, digests)
//! are names for it. `Images` is a cheap handle; all work it starts ends with the future that
//! asked for it, but for a pull that several wait for, which ends with the last of them.

mod auth;
mod digest;
mod fsutil;
mod host;
mod hosts;
mod import;
mod ingest;
mod layer;
mod manifest;
mod mount;
mod overlay;
mod pull;
mod record;
mod recover;
mod reference;
mod registry;
mod store;
mod sys;
mod transfer;
pub mod unpack;
pub mod users;
mod view;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use auth::Auth;
pub use digest::Digest;
pub use fsutil::Usage;
pub use import::{ImportFrom, Imported};
pub use mount::{ImageMount, Rootfs};
pub use overlay::Userns;
pub use pull::PullError;
pub use record::{ImageRecord, ImageUser, Named};
pub use reference::{BadReference, Reference};

use layer::Unpacker;
use record::BadRecord;
use store::Store;

/// What goes wrong with images on this machine. One line each.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("{object} {}: cannot {step}: {cause}", path.display())]
    Io {
        object: &'static str,
        step: &'static str,
        path: PathBuf,
        cause: String,
    },
    #[error(transparent)]
    Reference(#[from] BadReference),
    #[error("image id {0} is short for more than one image")]
    Ambiguous(String),
    #[error("layer {0} is not in the store")]
    NoLayer(Digest),
    #[error("layer {layer}: {why}")]
    Layer { layer: Digest, why: String },
    #[error("blob {blob}: {why}")]
    Blob { blob: String, why: String },
    #[error("manifest {manifest}: {why}")]
    Manifest { manifest: String, why: String },
    #[error("image config: {0}")]
    Config(#[from] BadRecord),
    #[error("image archive: {0}")]
    Archive(String),
    #[error("image volume: {0}")]
    Volume(String),
    #[error("mount of {what}: {step}: {cause}")]
    Mount {
        what: String,
        step: &'static str,
        cause: String,
    },
    #[error("image work was cut short: {0}")]
    Task(String),
}

impl Error {
    /// For `map_err`: object, step and path of a failed file operation.
    fn io(
        object: &'static str,
        step: &'static str,
        path: &Path,
    ) -> impl Fn(io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |e| Error::Io {
            object,
            step,
            path: path.clone(),
            cause: e.to_string(),
        }
    }
}

/// How a store of images is run. `Options::new` gives the defaults.
#[derive(Debug, Clone)]
pub struct Options {
    /// `<root>/containers`: `<id>/rootfs` below it is made and removed here.
    pub containers_dir: PathBuf,
    /// Where image volumes are mounted; may be on another file system, best one that a reboot clears.
    pub volumes_dir: PathBuf,
    /// Program and leading arguments of the unpack helper: `[<cairn>, "unpack"]`.
    pub unpack_helper: Vec<OsString>,
    /// Where `<host>/hosts.toml` is looked for at each pull (CRI-410).
    pub registry_config_dir: Option<PathBuf>,
    /// Layers transferred and unpacked at once, over all images.
    pub max_parallel_layers: usize,
    /// A transfer that moves no byte, and a helper that takes none, is given up (CRI-406).
    pub progress_timeout: Duration,
    /// Images to be pinned when they arrive, by full reference (CRI-178).
    pub pinned: Vec<Reference>,
}

impl Options {
    pub fn new(
        containers_dir: PathBuf,
        volumes_dir: PathBuf,
        unpack_helper: Vec<OsString>,
    ) -> Self {
        Self {
            containers_dir,
            volumes_dir,
            unpack_helper,
            registry_config_dir: None,
            max_parallel_layers: 2,
            progress_timeout: Duration::from_secs(300),
            pinned: Vec::new(),
        }
    }
}

/// How far a pull or import is. Shared with whoever asks; writers never wait.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    moved: AtomicU64,
    expected: AtomicU64,
}

impl Progress {
    /// Bytes of layers handed to the unpacker so far, and bytes announced.
    pub fn get(&self) -> (u64, u64) {
        (
            self.0.moved.load(Ordering::Relaxed),
            self.0.expected.load(Ordering::Relaxed),
        )
    }

    fn add(&self, bytes: usize) {
        self.0.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn expect(&self, bytes: u64) {
        self.0.expected.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What the layers take on disk (CRI-176).
#[derive(Debug, Clone)]
pub struct FsInfo {
    /// A directory of the file system that holds the layers.
    pub mountpoint: PathBuf,
    pub used_bytes: u64,
    pub inodes_used: u64,
}

/// All images of this machine.
#[derive(Clone)]
pub struct Images(Arc<Shared>);

struct Shared {
    store: Arc<Store>,
    unpacker: Arc<Unpacker>,
    options: Options,
    clients: host::Clients,
    flights: pull::Flights,
}

impl Images {
    /// Opens, or makes, the store at `root`. The caller keeps others out of it. What a crash left
    /// is finished: half-made layers go, unreadable records are set aside, uses are found again.
    pub fn open(root: &Path, options: Options) -> Result<Self, Error> {
        let store = Store::open(root)?;
        let unpacker = Arc::new(Unpacker::new(
            options.unpack_helper.clone(),
            options.max_parallel_layers,
            options.progress_timeout,
        ));
        let images = Self(Arc::new(Shared {
            store,
            unpacker,
            options,
            clients: Default::default(),
            flights: Default::default(),
        }));
        let options = &images.0.options;
        mount::find_uses(
            &images.0.store,
            &options.containers_dir,
            &options.volumes_dir,
        )?;
        images.0.store.collect();
        Ok(images)
    }

    /// Imports every image of an archive or layout (CRI-456); `name` renames the only one.
    pub async fn import(
        &self,
        from: ImportFrom,
        name: Option<&str>,
        progress: &Progress,
    ) -> Result<Vec<Imported>, Error> {
        let name = name.map(str::parse::<Reference>).transpose()?;
        import::import(&self.0, from, name, progress).await
    }

    /// The image that `text` names: an id with or without `sha256:`, a reference in any form, or
    /// the beginning of an id (CRI-171). None if it is not here, or if the text names nothing.
    pub fn resolve(&self, text: &str) -> Result<Option<Arc<ImageRecord>>, Error> {
        let store = &self.0.store;
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        if let Ok(id) = Digest::from_hex(hex) {
            return Ok(store.get(&id));
        }
        if let Ok(reference) = text.parse::<Reference>() {
            let found = match reference.repo_tag() {
                Some(tag) => store.by_tag(&tag),
                None => store
                    .list()
                    .into_iter()
                    .find(|image| image.answers_to(&reference)),
            };
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

    /// All images, by id; one entry per image (CRI-174).
    pub fn list(&self) -> Vec<Arc<ImageRecord>> {
        self.0.store.list()
    }

    /// Removes the image that `text` names, with all its names. Not here is fine (CRI-175). Layers
    /// that a container or volume uses stay until that goes.
    pub async fn remove(&self, text: &str) -> Result<(), Error> {
        let Some(image) = self.resolve(text)? else {
            return Ok(());
        };
        let store = self.0.store.clone();
        blocking(move || store.remove(&image.id)).await
    }

    /// Sets or clears the mark that keeps others from collecting the image (CRI-178).
    pub async fn pin(&self, id: &Digest, pinned: bool) -> Result<(), Error> {
        let (store, id) = (self.0.store.clone(), id.clone());
        blocking(move || store.pin(&id, pinned)).await
    }

    /// From memory; layers are counted when they are unpacked.
    pub fn fs_info(&self) -> FsInfo {
        let (used_bytes, inodes_used) = self.0.store.usage();
        FsInfo {
            mountpoint: self.0.store.root().to_owned(),
            used_bytes,
            inodes_used,
        }
    }
}

/// Runs disk work where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Error::Task(e.to_string())),
    }
}
