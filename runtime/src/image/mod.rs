//! Images: references, pull, import, unpack, store, mounts.
//!
//! ```text
//!  pull ──► registry ─┐                        ┌─► layer ──► `cairn unpack` (own process)
//!           import  ──┴─► manifest ─► ingest ──┤
//!                                              └─► store: records, layers, uses
//!                   container root, image volume ◄─ rootfs, volume ◄┘
//! ```
//!
//! An image *is* its config: its id is the config's digest, and tags and digests are names for it.
//! `Images` is a cheap handle. All work that it starts ends with the calling future, except a pull
//! that several callers wait for, which ends with the last of them.

#![expect(
    clippy::disallowed_methods,
    reason = "blocks by nature: called by blocking()"
)]

mod archive;
#[cfg(any(test, feature = "fuzzing"))]
pub mod checks;
mod digest;
mod error;
mod finish;
mod flights;
mod fsutil;
mod helper;
mod images;
mod import;
mod ingest;
mod layer;
mod manifest;
mod mount;
mod progress;
mod pull;
mod pull_error;
mod reference;
mod registry;
mod spool;
mod store;
mod turns;
pub mod unpack;
mod usage;

use std::path::Path;
use std::sync::Arc;

use tokio::io::AsyncRead;

pub use digest::Digest;
pub use error::Error;
pub use flights::PullUnderWay;
pub use images::{FsInfo, Images, Options};
pub use import::Imported;
pub use mount::overlay::Userns;
pub use mount::rootfs::{Rootfs, try_root_in};
pub use mount::uses::InUse;
pub use progress::Progress;
pub use pull_error::PullError;
pub use reference::{BadReference, Reference};
pub use registry::auth::Auth;
pub use store::record::{ImageRecord, RunConfig};
pub use turns::{Bounds as TurnBounds, LAYERS_PER_HOST};
pub use unpack::limits::TreeBounds;
pub use usage::Usage;

use images::Shared;
use mount::uses;
use store::index::Store;
use turns::Turns;

impl Images {
    /// Opens or makes the store at `root`; the caller excludes other processes. Recovers from a
    /// crash: incomplete layers are removed, unreadable records stay, uses are found again.
    pub fn open(root: &Path, options: Options) -> Result<Self, Error> {
        let store = Store::open(root)?;
        let images = Self(Arc::new(Shared {
            store,
            turns: Turns::new(options.turns),
            options,
            clients: Default::default(),
            flights: Default::default(),
            imports: Default::default(),
        }));
        let options = &images.0.options;
        uses::find_uses(&images.0.store, &options.roots_dir, &options.volumes_dir)?;
        images.0.store.collect();
        for reference in &options.pinned {
            if let Some(image) = reference
                .repo_tag()
                .and_then(|tag| images.0.store.by_tag(&tag))
            {
                images.0.store.pin(&image.id)?;
            }
        }
        Ok(images)
    }

    /// Imports every image of an archive (CRI-456): an OCI layout or `docker save`, plain or
    /// compressed; `name` renames a single one. Waits for a running import.
    pub async fn import(
        &self,
        from: impl AsyncRead + Send + Unpin + 'static,
        name: Option<&str>,
        progress: &Progress,
    ) -> Result<Vec<Imported>, Error> {
        let name = name.map(str::parse::<Reference>).transpose()?;
        import::import(&self.0, from, name, progress).await
    }
}
