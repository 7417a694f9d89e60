//! What is damaged is set aside: out of the store's sight, so that the next pull fetches it. The images that it is of are
//! not here until then; their good layers are kept for it until the store is opened next.

use std::path::Path;
use std::sync::Arc;

use super::digest::Digest;
use super::error::Error;
use super::record::ImageRecord;
use super::store::Store;

/// Who needs a layer, so that it stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InTheWay {
    /// Ids of the containers whose root it is in, and of the pods with an image volume that it is in.
    Users(Vec<String>),
    /// A pull, an import or another verification counts on it.
    Work,
    /// Some container's root cannot say what it is made of.
    Unknown,
}

/// What became of a layer.
pub enum SetAside {
    /// It is away, and these images with it.
    With(Vec<Arc<ImageRecord>>),
    Not(InTheWay),
}

impl Store {
    /// Takes a layer away, and forgets the images that have it, which it gives. One that is not there is away already.
    pub fn set_aside(self: &Arc<Self>, chain_id: &Digest) -> Result<SetAside, Error> {
        let (layer, images) = {
            let mut inner = self.lock();
            if self.is_frozen() {
                return Ok(SetAside::Not(InTheWay::Unknown));
            }
            let of_it = inner.uses.iter().filter(|(_, has)| has.contains(chain_id));
            let mut users: Vec<_> = of_it.map(|(dir, _)| user(dir)).collect();
            if !users.is_empty() {
                users.sort();
                return Ok(SetAside::Not(InTheWay::Users(users)));
            }
            if inner.holds.contains_key(chain_id) {
                return Ok(SetAside::Not(InTheWay::Work));
            }
            let images = inner.images.values();
            let images = images.filter(|image| image.layers.contains(chain_id));
            let images: Vec<_> = images.cloned().collect();
            (inner.layers.remove(chain_id), images)
        };
        for image in &images {
            self.forget(&image.id)?;
        }
        if let Some(layer) = layer {
            self.scratch.discard(&layer.dir);
        }
        Ok(SetAside::With(images))
    }

    /// Forgets an image whose layers the next pull of it will need.
    pub fn forget(self: &Arc<Self>, id: &Digest) -> Result<(), Error> {
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
