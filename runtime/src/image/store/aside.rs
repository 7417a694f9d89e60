//! Sets damaged layers aside, so that the next pull fetches them. Until then their images count as
//! missing; the intact layers of these images are kept until the store is opened again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::index::{Inner, Store};
use super::record::ImageRecord;
use crate::image::digest::Digest;
use crate::image::error::Error;

/// The reason why a layer must stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InTheWay {
    /// Ids of containers with it in their root, and of pods with it in an image volume.
    Users(Vec<String>),
    /// A pull, an import or another verification needs it.
    Work,
    /// The layers of some container's root are unknown.
    Unknown,
}

/// Result of setting layers aside.
pub enum SetAside<T> {
    /// They are removed, and these images with them.
    Away(Vec<T>),
    /// Nothing is removed: this layer is needed.
    Needed(Digest, InTheWay),
}

impl Store {
    /// Removes these layers, each as it was found, and returns the images that it therefore
    /// forgets. All or nothing: one needed layer prevents it. A layer that was removed or made anew
    /// meanwhile stays.
    pub(crate) fn set_aside(
        self: &Arc<Self>,
        found: &BTreeMap<Digest, Option<PathBuf>>,
    ) -> Result<SetAside<Arc<ImageRecord>>, Error> {
        let mut taken = Vec::new();
        let images: Vec<_> = {
            let mut inner = self.lock();
            for chain_id in found.keys() {
                if let Some(in_the_way) = self.in_the_way(&inner, chain_id) {
                    return Ok(SetAside::Needed(chain_id.clone(), in_the_way));
                }
            }
            let mut removed = BTreeSet::new();
            for (chain_id, dir) in found {
                let there = inner.layers.get(chain_id).map(|layer| layer.dir.clone());
                if there != *dir {
                    continue;
                }
                removed.insert(chain_id);
                taken.extend(inner.layers.remove(chain_id).map(|layer| (chain_id, layer)));
            }
            let images = inner.images.values();
            let has =
                |image: &&Arc<ImageRecord>| image.layers.iter().any(|id| removed.contains(id));
            images.filter(has).cloned().collect()
        };
        for image in &images {
            if let Err(error) = self.forget(&image.id) {
                let mut inner = self.lock();
                for (chain_id, layer) in taken {
                    inner.layers.entry(chain_id.clone()).or_insert(layer);
                }
                return Err(error);
            }
        }
        for (_, layer) in taken {
            self.scratch.discard(&layer.dir);
        }
        Ok(SetAside::Away(images))
    }

    fn in_the_way(&self, inner: &Inner, chain_id: &Digest) -> Option<InTheWay> {
        if self.is_frozen() {
            return Some(InTheWay::Unknown);
        }
        let of_it = inner.uses.iter().filter(|(_, has)| has.contains(chain_id));
        let mut users: Vec<_> = of_it.map(|(dir, _)| user(dir)).collect();
        users.sort();
        if !users.is_empty() {
            return Some(InTheWay::Users(users));
        }
        inner.holds.contains_key(chain_id).then_some(InTheWay::Work)
    }

    /// Forgets an image, but keeps its layers for its next pull.
    pub(crate) fn forget(self: &Arc<Self>, id: &Digest) -> Result<(), Error> {
        {
            let mut inner = self.lock();
            let layers = inner.images.get(id).map(|image| image.layers.clone());
            inner.kept.extend(layers.unwrap_or_default());
        }
        self.remove(id)
    }
}

/// `<id>` of `<id>/rootfs`, or of `<id>/<image>`.
fn user(dir: &Path) -> String {
    let id = dir.parent().and_then(Path::file_name);
    id.unwrap_or(dir.as_os_str()).to_string_lossy().into_owned()
}
