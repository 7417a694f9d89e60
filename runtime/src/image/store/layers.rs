//! The store's layers: each exists once, and stays while an image, a use or a hold names it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::index::Store;
use super::layer_record::{Layer, LayerInfo};
use super::scratch::TempDir;
use crate::image::digest::Digest;
use crate::image::error::Error;
use crate::replace;

impl Store {
    /// The one lock of this layer; its holder may unpack the layer.
    pub(crate) fn layer_lock(&self, chain_id: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.layer_locks.lock();
        if let Some(lock) = locks.get(chain_id).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        locks.insert(chain_id.clone(), Arc::downgrade(&lock));
        lock
    }

    pub(crate) fn has_layer(&self, chain_id: &Digest) -> bool {
        self.lock().layers.contains_key(chain_id)
    }

    /// Trees of these layers, topmost first, down to the first that hides all below.
    /// An image without layers has one empty tree.
    pub(crate) fn lowers(&self, layers: &[Digest]) -> Result<Vec<PathBuf>, Error> {
        let inner = self.lock();
        let mut trees = Vec::with_capacity(layers.len());
        for chain_id in layers.iter().rev() {
            let layer = inner
                .layers
                .get(chain_id)
                .ok_or_else(|| Error::NoLayer(chain_id.clone()))?;
            trees.push(layer.dir.join("fs"));
            if layer.info.opaque {
                break;
            }
        }
        if trees.is_empty() {
            trees.push(self.root().join("empty"));
        }
        Ok(trees)
    }

    /// Bytes and inodes of those of these layers that are in the store.
    pub(crate) fn usage_of(&self, layers: &[Digest]) -> (u64, u64) {
        let inner = self.lock();
        total(layers.iter().filter_map(|layer| inner.layers.get(layer)))
    }

    /// Commits an unpacked layer: `tmp` contains `fs/`, whose files are on stable storage. The
    /// caller has the layer's lock, and the layer is not in the store.
    pub(crate) fn commit_layer(&self, tmp: &TempDir, info: LayerInfo) -> Result<(), Error> {
        let failed = |step| Error::io("layer", step, &tmp.path);
        let json = serde_json::to_vec(&info).map_err(|e| failed("describe")(e.into()))?;
        replace::file_durably(&tmp.path.join("layer.json"), &json).map_err(failed("describe"))?;
        let dir = self.scratch.fresh("layers");
        fs::rename(&tmp.path, &dir).map_err(failed("commit"))?;
        let synced = File::open(self.root().join("layers")).and_then(|d| d.sync_all());
        synced.map_err(failed("commit"))?;
        self.lock()
            .layers
            .insert(info.chain_id.clone(), Layer { dir, info });
        Ok(())
    }

    /// Registers a use by its directory, before anything is mounted there.
    pub(crate) fn add_use(&self, dir: &Path, layers: &[Digest]) {
        self.lock().uses.insert(dir.to_owned(), layers.to_vec());
    }

    pub(crate) fn uses(&self) -> Vec<PathBuf> {
        self.lock().uses.keys().cloned().collect()
    }

    /// The layers of a use, lowest first.
    pub(crate) fn layers_of_use(&self, dir: &Path) -> Option<Vec<Digest>> {
        self.lock().uses.get(dir).cloned()
    }

    /// Ends a use; removes layers that only it kept.
    pub(crate) fn end_use(self: &Arc<Self>, dir: &Path) {
        let ended = self.lock().uses.remove(dir);
        if let Some(layers) = ended {
            self.sweep(&layers);
        }
    }

    /// Bytes and inodes of all layers, from memory.
    pub(crate) fn usage(&self) -> (u64, u64) {
        total(self.lock().layers.values())
    }

    /// Removes those of `candidates` that nothing names any more.
    pub(super) fn sweep(self: &Arc<Self>, candidates: &[Digest]) {
        if self.is_frozen() {
            return;
        }
        let mut dirs = Vec::new();
        {
            let mut inner = self.lock();
            let mut needed: HashSet<&Digest> = inner.holds.keys().collect();
            needed.extend(inner.images.values().flat_map(|image| &image.layers));
            needed.extend(inner.uses.values().flatten());
            let unneeded: Vec<_> = candidates
                .iter()
                .filter(|c| !needed.contains(c))
                .cloned()
                .collect();
            for chain_id in unneeded {
                dirs.extend(inner.layers.remove(&chain_id).map(|layer| layer.dir));
            }
        }
        for dir in dirs {
            self.scratch.discard(&dir);
        }
    }
}

/// Bytes and inodes.
fn total<'a>(layers: impl Iterator<Item = &'a Layer>) -> (u64, u64) {
    layers.fold((0, 0), |(bytes, inodes), layer| {
        (bytes + layer.info.disk_bytes, inodes + layer.info.inodes)
    })
}
