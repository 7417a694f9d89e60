//! `cairn image verify`: checks the store's content, so that the next pull can repair it.
//!
//! ```text
//! records/<id>.json   its config has the digest in the id
//! layers/<n>          its tree matches its inventory (compare.rs), once for all images with it
//! ```
//!
//! Reads from the disk, at its speed, on the caller's thread.

pub(super) mod compare;
mod entry_facts;
pub(super) mod inventory;
pub(super) mod sum;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use crate::image::digest::Digest;
use crate::image::error::Error;
use crate::image::images::Images;
use crate::image::store::aside::SetAside;
use crate::image::store::index::Store;
use crate::image::store::record::ImageRecord;
use crate::image::store::recover::{ids_on_disk, is_of_another_version, read_one};
use compare::{Found, Watch, compare};

/// The most reported damages of an image; further ones are counted.
const REPORTED_MAX: usize = 100;

/// The fewest digits of an abbreviated id.
const SHORTEST: usize = 4;

#[derive(Debug)]
pub struct Verified {
    pub id: Digest,
    /// Its tags, or else the digests that it was pulled by.
    pub names: Vec<String>,
    pub layers: usize,
    /// Checked entries of its layers.
    pub entries: u64,
    /// Layers without an inventory, which cannot be checked.
    pub unknown: usize,
    pub damages: Vec<Damage>,
    /// Number of further damages.
    pub untold: u64,
    /// Damaged layers, with the directory that was checked; `None` for a missing layer.
    damaged: BTreeMap<Digest, Option<PathBuf>>,
}

#[derive(Debug)]
pub struct Damage {
    /// The layer's chain id; `None` for the image's record.
    pub layer: Option<Digest>,
    /// In the layer; empty for the layer or the record itself.
    pub path: String,
    pub why: String,
}

impl Verified {
    fn damage(&mut self, layer: Option<&Digest>, path: &str, why: String) {
        // At least one damage of each layer is reported.
        let is_more = self.damages.last().map(|last| last.layer.as_ref()) == Some(layer);
        if is_more && self.damages.len() >= REPORTED_MAX {
            self.untold += 1;
            return;
        }
        self.damages.push(Damage {
            layer: layer.cloned(),
            path: path.to_owned(),
            why,
        });
    }
}

/// Checked layers; `None` if one cannot be verified.
type Seen = HashMap<Digest, Option<Arc<Found>>>;

impl Images {
    /// Verifies these images, or all, and reports each. Ends early if the watch has ended.
    /// Blocking.
    pub fn verify(
        &self,
        ids: &[Digest],
        watch: &Watch,
        report: &mut dyn FnMut(Verified),
    ) -> Result<(), Error> {
        let store = &self.0.store;
        let records = records(store, ids)?;
        let all = records.values().flatten().flat_map(|r| &r.layers);
        let once: BTreeSet<_> = all.cloned().collect();
        let once: Vec<_> = once.into_iter().collect();
        watch.progress.expect(store.usage_of(&once).0);
        let mut seen = Seen::new();
        for (id, record) in records {
            let verified = image(store, &id, record.as_deref(), &mut seen, watch);
            if (watch.is_over)() {
                return Ok(());
            }
            if let Some(verified) = verified {
                report(verified);
            }
        }
        Ok(())
    }

    /// The image for this name, id or beginning of an id, even if its record is unreadable.
    pub fn resolve_damaged(&self, text: &str) -> Result<Option<Digest>, Error> {
        if let Some(image) = self.resolve(text)? {
            return Ok(Some(image.id.clone()));
        }
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        let mut ids = ids_on_disk(self.0.store.root())?;
        ids.retain(|id| hex.len() >= SHORTEST && id.hex().starts_with(hex));
        Ok(ids.pop().filter(|_| ids.is_empty()))
    }

    /// Sets damaged layers aside for the next pull: their images are absent until then. Returns the
    /// names of other affected images, or the layer that is needed and its users. Blocking.
    pub fn set_aside(&self, found: &Verified) -> Result<SetAside<String>, Error> {
        let store = &self.0.store;
        let images = match store.set_aside(&found.damaged)? {
            SetAside::Away(images) => images,
            SetAside::Needed(layer, in_the_way) => return Ok(SetAside::Needed(layer, in_the_way)),
        };
        let others = images.iter().filter(|image| image.id != found.id);
        let others = others.flat_map(|image| names(image)).collect();
        let is_known = store.get(&found.id).is_some();
        if is_known && read_one(&store.record_path(&found.id)).is_err() {
            store.forget(&found.id)?;
        } else if !is_known && !is_of_another_version(&store.record_path(&found.id)) {
            // The store did not load it because of the damage.
            store.remove_unknown(&found.id)?;
        }
        Ok(SetAside::Away(others))
    }
}

/// Images by id, from memory and from disk; `None` for an unreadable record.
fn records(
    store: &Store,
    ids: &[Digest],
) -> Result<BTreeMap<Digest, Option<Arc<ImageRecord>>>, Error> {
    let mut records = BTreeMap::new();
    for image in store.list() {
        if ids.is_empty() || ids.contains(&image.id) {
            records.insert(image.id.clone(), Some(image));
        }
    }
    for id in ids_on_disk(store.root())? {
        if ids.is_empty() || ids.contains(&id) {
            let read = |id: &Digest| read_one(&store.record_path(id)).ok().map(Arc::new);
            records.entry(id).or_insert_with_key(read);
        }
    }
    Ok(records)
}

/// Verifies one image; `None` if it was removed meanwhile.
fn image(
    store: &Arc<Store>,
    id: &Digest,
    record: Option<&ImageRecord>,
    seen: &mut Seen,
    watch: &Watch,
) -> Option<Verified> {
    let is_known = || store.get(id).is_some();
    let layers = record.map_or(&[][..], |record| &record.layers[..]);
    // An image on disk only gets no hold: releasing the hold would remove its layers.
    let _hold = is_known().then(|| store.hold(layers));
    let mut verified = Verified {
        id: id.clone(),
        names: record.map_or_else(Vec::new, names),
        layers: layers.len(),
        entries: 0,
        unknown: 0,
        damages: Vec::new(),
        untold: 0,
        damaged: BTreeMap::new(),
    };
    if let Err(why) = store.settled(id, || read_one(&store.record_path(id))) {
        verified.damage(None, "", format!("its record: {why}"));
    }
    for chain_id in layers {
        let Some(layer) = store.layer(chain_id) else {
            verified.damage(Some(chain_id), "", "is missing".to_owned());
            verified.damaged.insert(chain_id.clone(), None);
            continue;
        };
        let found = seen.entry(chain_id.clone()).or_insert_with(|| {
            let tree = layer.info.tree.as_ref();
            tree.and_then(|digest| compare(&layer.dir, digest, watch).map(Arc::new))
        });
        let Some(found) = found else {
            verified.unknown += 1;
            continue;
        };
        if !found.damages.is_empty() {
            verified
                .damaged
                .insert(chain_id.clone(), Some(layer.dir.clone()));
        }
        for (path, why) in &found.damages {
            verified.damage(Some(chain_id), path, why.clone());
        }
        verified.entries += found.entries;
        verified.untold += found.omitted;
    }
    (is_known() || store.record_path(id).exists()).then_some(verified)
}

fn names(record: &ImageRecord) -> Vec<String> {
    if record.repo_tags.is_empty() {
        record.repo_digests.clone()
    } else {
        record.repo_tags.clone()
    }
}
