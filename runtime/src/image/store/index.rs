//! Image store: records and layers on disk, their index in memory, and the uses of layers
//! (operations on layers: `layers.rs`).
//!
//! ```text
//! <root>/records/<id hex>.json     one image; a file here means all its layers are here (CRI-445)
//! <root>/layers/<n>/fs             one layer's tree; layers/<n>/layer.json identifies it
//! <root>/tmp/<n>/                  being made; swept when the store is opened
//! <root>/trash/<n>                 being removed; swept when the store is opened
//! ```
//!
//! A layer is *committed* by the rename of its directory into `layers/`. It is removed when no
//! image, use (container root or image volume) or hold (running pull) names it. The one mutex
//! guards memory only: no disk or network work is done under it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use cairn_monitor::own_file;
use parking_lot::{Mutex, MutexGuard};

use super::layer_record::Layer;
use super::record::{self, ImageRecord, Names};
use super::recover::{drop_stolen_tags, load_layers, load_records};
use super::scratch::Scratch;
use crate::image::digest::Digest;
use crate::image::error::Error;
use crate::image::fsutil;
use crate::image::reference::Reference;
use crate::image::spool::{Document, one_at_a_time};
use crate::replace;

/// Locks for writing records; two images seldom share one.
const WRITERS: usize = 16;

#[derive(Default)]
pub(super) struct Inner {
    pub images: HashMap<Digest, Arc<ImageRecord>>,
    /// `name:tag` to the one image that has it.
    tags: HashMap<String, Digest>,
    pub layers: HashMap<Digest, Layer>,
    /// Chain ids by the directory of the use that needs them.
    pub uses: HashMap<PathBuf, Vec<Digest>>,
    /// Layers that running work needs.
    pub holds: HashMap<Digest, usize>,
    /// Images whose file is out of date.
    behind: HashSet<Digest>,
}

pub(crate) struct Store {
    root: PathBuf,
    /// Valid between any two statements: a panic under the lock spoils nothing.
    inner: Mutex<Inner>,
    writers: [Mutex<()>; WRITERS],
    /// One task unpacks a layer, others wait for it.
    pub(super) layer_locks: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
    pub scratch: Arc<Scratch>,
    /// Some record is unreadable.
    damaged: bool,
    frozen: AtomicBool,
}

/// Keeps a set of layers from removal while it lives.
pub(crate) struct Hold {
    store: Arc<Store>,
    layers: Vec<Digest>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        {
            let mut inner = self.store.lock();
            for layer in &self.layers {
                if let Some(count) = inner.holds.get_mut(layer) {
                    *count -= 1;
                    if *count == 0 {
                        inner.holds.remove(layer);
                    }
                }
            }
        }
        self.store.sweep(&self.layers);
    }
}

impl Store {
    /// Opens or makes the store at `root`. The caller has the lock that excludes other processes.
    pub(crate) fn open(root: &Path) -> Result<Arc<Self>, Error> {
        for dir in ["records", "layers", "tmp", "trash", "empty"] {
            let dir = root.join(dir);
            fs::create_dir_all(&dir).map_err(Error::io("image store", "create", &dir))?;
        }
        let (layers, last) = load_layers(root)?;
        let (images, damaged) = load_records(root, &layers)?;
        let mut inner = Inner {
            layers,
            ..Inner::default()
        };
        for image in images {
            for tag in &image.repo_tags {
                inner.tags.insert(tag.clone(), image.id.clone());
            }
            inner.images.insert(image.id.clone(), image);
        }
        drop_stolen_tags(&mut inner.images, &inner.tags);
        let store = Arc::new(Self {
            root: root.to_owned(),
            inner: Mutex::new(inner),
            writers: Default::default(),
            layer_locks: Mutex::default(),
            scratch: Arc::new(Scratch::new(root, last + 1)),
            damaged: damaged > 0,
            frozen: AtomicBool::new(false),
        });
        store.scratch.sweep()?;
        if damaged > 0 {
            tracing::warn!(
                damaged,
                "image records cannot be read; unused layers are kept meanwhile"
            );
        }
        Ok(store)
    }

    /// Removes layers that no image and no use names. Called once, when the uses are known. An
    /// unreadable record prevents it, so that a later reader finds its layers.
    pub(crate) fn collect(self: &Arc<Self>) {
        let all: Vec<_> = self.lock().layers.keys().cloned().collect();
        if !self.damaged {
            self.sweep(&all);
        }
    }

    /// Keeps all layers until the next start: a container or volume uses unknown ones.
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn get(&self, id: &Digest) -> Option<Arc<ImageRecord>> {
        self.lock().images.get(id).cloned()
    }

    pub(crate) fn by_tag(&self, tag: &str) -> Option<Arc<ImageRecord>> {
        let inner = self.lock();
        inner.images.get(inner.tags.get(tag)?).cloned()
    }

    /// The image for the reference, by its digest if present.
    pub(crate) fn named(&self, reference: &Reference) -> Option<Arc<ImageRecord>> {
        match reference.repo_tag() {
            Some(tag) => self.by_tag(&tag),
            None => {
                let mut all = self.list().into_iter();
                all.find(|image| image.answers_to(reference))
            }
        }
    }

    /// All images, by id.
    pub(crate) fn list(&self) -> Vec<Arc<ImageRecord>> {
        let mut all: Vec<_> = self.lock().images.values().cloned().collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Keeps these layers, present or future, from removal.
    pub(crate) fn hold(self: &Arc<Self>, layers: &[Digest]) -> Hold {
        let mut inner = self.lock();
        for layer in layers {
            *inner.holds.entry(layer.clone()).or_default() += 1;
        }
        Hold {
            store: self.clone(),
            layers: layers.to_vec(),
        }
    }

    /// Adds an image with its config, or names to a known one. Tags move here from other images. On
    /// disk when this returns. `_hold` is of the image's layers: a record implies all of them.
    pub(crate) fn put(
        &self,
        _hold: &Hold,
        record: &ImageRecord,
        config: Option<&Document>,
        names: &Names,
    ) -> Result<Arc<ImageRecord>, Error> {
        crate::fault::point("image.record.write")
            .map_err(|fired| Error::Task(fired.to_string()))?;
        let (now, losers) = {
            let mut inner = self.lock();
            let known = inner.images.get(&record.id).cloned();
            if known.is_none() && config.is_none() {
                return Err(Error::NoImage(record.id.clone()));
            }
            let base = known.as_deref().unwrap_or(record);
            let mut layers = base.layers.iter();
            if let Some(missing) = layers.find(|layer| !inner.layers.contains_key(layer)) {
                return Err(Error::NoLayer(missing.clone()));
            }
            let mut now = base.with_names(names);
            now.pinned |= record.pinned;
            let mut losers = HashSet::new();
            for tag in &names.repo_tags {
                let before = inner.tags.insert(tag.clone(), record.id.clone());
                if let Some(id) = before.filter(|id| *id != record.id)
                    && let Some(other) = inner.images.get_mut(&id)
                {
                    Arc::make_mut(other).repo_tags.retain(|t| t != tag);
                    losers.insert(id);
                }
            }
            let now = Arc::new(now);
            inner.images.insert(record.id.clone(), now.clone());
            (now, losers)
        };
        // The old owner loses a tag first: a crash in between leaves no tag with two owners.
        for id in losers {
            self.flush(&id, None)?;
        }
        self.flush(&record.id, config)?;
        Ok(now)
    }

    /// Pins an image, so that others do not collect it (CRI-178).
    pub(crate) fn pin(&self, id: &Digest) -> Result<(), Error> {
        match self.lock().images.get_mut(id) {
            Some(image) if !image.pinned => Arc::make_mut(image).pinned = true,
            _ => return Ok(()),
        }
        self.flush(id, None)
    }

    /// Removes an image with all its names (CRI-175); layers in use stay until the use ends.
    pub(crate) fn remove(self: &Arc<Self>, id: &Digest) -> Result<(), Error> {
        let removed = {
            let mut inner = self.lock();
            let removed = inner.images.remove(id);
            inner.tags.retain(|_, owner| owner != id);
            removed
        };
        let Some(removed) = removed else {
            return Ok(());
        };
        let result = self.flush(id, None);
        if result.is_err() {
            // Still on disk, and so still listed: the caller may try again.
            let mut inner = self.lock();
            for tag in &removed.repo_tags {
                inner.tags.entry(tag.clone()).or_insert_with(|| id.clone());
            }
            inner.images.entry(id.clone()).or_insert(removed);
            return result;
        }
        self.sweep(&removed.layers);
        Ok(())
    }

    fn writer_of(&self, id: &Digest) -> MutexGuard<'_, ()> {
        let stripe = usize::from(id.hex().as_bytes()[0] ^ id.hex().as_bytes()[1]) % WRITERS;
        self.writers[stripe].lock()
    }

    /// Writes the record's *current* state in memory to its file. Several changes may share a
    /// write; the last write always wins. Without `config` the file's config stays; without a file,
    /// the next `put` with a config writes it.
    fn flush(&self, id: &Digest, config: Option<&Document>) -> Result<(), Error> {
        let _writer = self.writer_of(id);
        let path = self.record_path(id);
        let write = |record: &ImageRecord, config: &str| {
            replace::file_durably(&path, &record.to_json(config))
        };
        let written = match (self.get(id), config) {
            (None, _) => fsutil::remove_durably(&path),
            (Some(record), Some(config)) => config
                .read(|bytes| {
                    let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
                    write(&record, text)
                })
                .flatten(),
            (Some(record), None) => match with_config(&path, |config| write(&record, config)) {
                Ok(Some(written)) => written,
                Ok(None) => return Ok(()),
                Err(e) => Err(e),
            },
        };
        let mut inner = self.lock();
        match &written {
            Ok(()) => inner.behind.remove(id),
            Err(_) => inner.behind.insert(id.clone()),
        };
        written.map_err(Error::io("image record", "write", &path))
    }

    /// The unchanged config of an image. Blocking.
    pub(crate) fn config_json(&self, id: &Digest) -> Result<Option<String>, Error> {
        let path = self.record_path(id);
        with_config(&path, str::to_owned).map_err(Error::io("image record", "read", &path))
    }

    pub(crate) fn record_path(&self, id: &Digest) -> PathBuf {
        self.root.join("records").join(format!("{}.json", id.hex()))
    }

    /// Whether the image's file is up to date.
    pub(crate) fn is_durable(&self, id: &Digest) -> bool {
        !self.lock().behind.contains(id)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

/// Passes the config in a record's file to `look`, if the file exists.
fn with_config<T: Send>(path: &Path, look: impl FnOnce(&str) -> T + Send) -> io::Result<Option<T>> {
    one_at_a_time(|| {
        let bytes = match own_file::read(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let config = record::config_json(&bytes).map_err(io::Error::other)?;
        drop(bytes);
        Ok(Some(look(&config)))
    })
}
