//! From a layer's stream to a committed layer: feed the helper, check both digests, finish the
//! tree with what only the daemon can do, make it durable, commit.
//!
//! ```text
//! stream ──► digest ──► helper (own process) ──► tmp/<n>/fs ──► marks ──► syncfs ──► rename
//! ```
//!
//! Nothing counts before the rename. A dropped future kills the helper and removes `tmp/<n>`.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;

use super::digest::{Digest, Hasher};
use super::error::{Error, blocking};
use super::finish::finish;
use super::helper::Ended;
use super::images::Shared;
use super::manifest::Descriptor;
use super::progress::Progress;
use super::spool::Document;
use super::store::index::Store;
use super::store::layer_record::{INVENTORY, LayerInfo, SCHEMA};
use super::store::scratch::TempDir;
use super::unpack::limits::TreeBounds;
use super::unpack::{LAYER, REPORT_MAX, Report, Summary};
use super::verify::inventory::{self, Sums};

/// Held while a long report is in memory: what is left to do for it may take a while.
static LONG_REPORT: Mutex<()> = Mutex::new(());

/// What an image may still come to, as its layers are unpacked one beside the other.
pub(super) struct Budget {
    bounds: TreeBounds,
    /// Bytes and files.
    left: Mutex<(u64, u64)>,
}

impl Budget {
    /// Takes what a layer, or several, came to; too much is an error.
    fn take(&self, bytes: u64, files: u64) -> Result<(), Error> {
        let mut left = self.left.lock();
        let refuse = |what, max, key| Err(Error::TooLarge { what, max, key });
        let Some(bytes) = left.0.checked_sub(bytes) else {
            return refuse("bytes", self.bounds.bytes, "max_image_bytes");
        };
        let Some(files) = left.1.checked_sub(files) else {
            return refuse("files", self.bounds.files, "max_image_files");
        };
        *left = (bytes, files);
        Ok(())
    }
}

/// A layer's tree in `tmp/`, checked, not yet committed.
pub(super) struct Unpacked {
    tmp: TempDir,
    /// The helper's report, and what of it is kept in memory.
    said: Document,
    summary: Summary,
}

impl Shared {
    /// What is left for an image of which layers of so many bytes and files are here.
    pub(super) fn budget(&self, (bytes, files): (u64, u64)) -> Result<Budget, Error> {
        let bounds = self.options.image;
        let left = Mutex::new((bounds.bytes, bounds.files));
        let budget = Budget { bounds, left };
        budget.take(bytes, files)?;
        Ok(budget)
    }

    /// Unpacks `stream` and checks it against the blob's digest and size and the config's diff id.
    pub(super) async fn unpack<E: From<Error>>(
        &self,
        blob: &Descriptor,
        diff_id: &Digest,
        stream: BoxStream<'static, Result<Bytes, E>>,
        budget: &Budget,
        progress: &Progress,
    ) -> Result<Unpacked, E> {
        let tmp = self.store.scratch.temp_dir()?;
        let fs = tmp.path.join("fs");
        std::fs::create_dir(&fs).map_err(Error::io("layer", "create", &fs))?;
        // A file, so that a report that is long, and waits for its turn, takes no memory.
        let said = tempfile::tempfile_in(&tmp.path);
        let said = said.map_err(Error::io("unpack helper", "make a report for", &fs))?;
        let room = super::fsutil::room(&fs);
        let (bytes, inodes) = room.map_err(Error::io("layer", "look for room at", &fs))?;
        let left = *budget.left.lock();
        let depth = u64::from(budget.bounds.depth);
        let limits = [bytes.min(left.0), inodes.min(left.1), depth];
        let mut hasher = Hasher::default();
        let each = |chunk: &Bytes| {
            hasher.update(chunk);
            progress.add(chunk.len());
            match blob.size {
                Some(size) if hasher.bytes() > size => {
                    Err(blob.fault("is longer than its manifest says").into())
                }
                _ => Ok(()),
            }
        };
        let stalled = || blob.fault("unpacking made no progress");
        let helper = (LAYER, &*fs, &limits[..]);
        let ended = self.run_helper(helper, &said, stream, each, stalled);
        let ended = ended.await?;
        ended_well(blob, hasher, &ended)?;
        let (blob, diff_id) = (blob.clone(), diff_id.clone());
        let (said, summary) = blocking(move || judge(&blob, &diff_id, said)).await?;
        budget.take(summary.disk_bytes, summary.inodes)?;
        Ok(Unpacked { tmp, said, summary })
    }
}

/// Whether the helper got what the blob's size and digest say, and was content with it.
fn ended_well(blob: &Descriptor, fed: Hasher, ended: &Ended) -> Result<(), Error> {
    if ended.took_all {
        if blob.size.is_some_and(|size| fed.bytes() != size) {
            return Err(blob.fault("is shorter than its manifest says"));
        }
        let got = fed.finish();
        if blob.digest.as_ref().is_some_and(|want| *want != got) {
            return Err(blob.fault(format!("has the digest {got}")));
        }
    }
    let why = ended.fault();
    why.map_or(Ok(()), |why| Err(blob.fault(format!("unpack: {why}"))))
}

/// The helper's report, if it is about the layer that the config means. Blocking.
fn judge(blob: &Descriptor, diff_id: &Digest, said: File) -> Result<(Document, Summary), Error> {
    let unreadable = |e: String| blob.fault(format!("unpack: unreadable report: {e}"));
    let said = Document::from_file(said).map_err(|e| unreadable(e.to_string()))?;
    if said.bytes > REPORT_MAX {
        return Err(unreadable(format!("of {} bytes", said.bytes)));
    }
    let summary = said
        .read(|bytes| serde_json::from_slice::<Summary>(bytes).map_err(|e| e.to_string()))
        .map_err(|e| unreadable(e.to_string()))?
        .map_err(unreadable)?;
    if summary.diff_id != *diff_id {
        let got = &summary.diff_id;
        return Err(blob.fault(format!("unpacks to {got}, but the config says {diff_id}")));
    }
    Ok((said, summary))
}

impl Unpacked {
    /// Finishes the tree upon `lowers` (topmost first), makes it durable and commits it. Blocking.
    pub(super) fn commit(
        self,
        store: &Store,
        chain_id: &Digest,
        diff_id: &Digest,
        lowers: &[PathBuf],
    ) -> Result<(), Error> {
        let fs = self.tmp.path.join("fs");
        let root: OwnedFd = File::open(&fs)
            .map_err(Error::io("layer", "open", &fs))?
            .into();
        let long = self.said.is_long().then(|| LONG_REPORT.lock());
        let report = self
            .said
            .read(|bytes| serde_json::from_slice::<Report>(bytes));
        let report = report.map_err(Error::layer(chain_id, "report"))?;
        let report = report.map_err(Error::layer(chain_id, "report"))?;
        let opaque = finish(chain_id, &root, lowers, &report)?;
        let sums = report.sums().map_err(Error::layer(chain_id, "report"))?;
        drop(report);
        crate::fault::point("image.layer.flush").map_err(Error::layer(chain_id, "fault"))?;
        // One flush for all the layer's files (CRI-445); records are written only after it. The disk is busy with it while
        // the inventory is made.
        let (flushed, tree) = std::thread::scope(|scope| {
            let flush =
                std::thread::Builder::new().spawn_scoped(scope, || rustix::fs::syncfs(&root));
            let tree = self.inventory(&root, &sums);
            drop((sums, long));
            let flushed = flush.map(|flush| match flush.join() {
                Ok(flushed) => flushed,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            (flushed, tree)
        });
        let flushed = flushed.and_then(|flushed| Ok(flushed?));
        flushed.map_err(Error::layer(chain_id, "flush"))?;
        let tree = tree.map_err(Error::layer(chain_id, "inventory"))?;
        if tree.is_none() {
            tracing::warn!(layer = %chain_id, "its tree is too large for an inventory: it cannot be verified");
        }
        crate::fault::point("image.layer.commit").map_err(Error::layer(chain_id, "fault"))?;
        let info = LayerInfo {
            schema: SCHEMA,
            chain_id: chain_id.clone(),
            diff_id: diff_id.clone(),
            disk_bytes: self.summary.disk_bytes,
            inodes: self.summary.inodes,
            opaque,
            tree,
        };
        store.commit_layer(&self.tmp, info)
    }

    /// Writes down what is in the finished tree, durably.
    fn inventory(&self, root: &OwnedFd, sums: &Sums) -> std::io::Result<Option<Digest>> {
        let path = self.tmp.path.join(INVENTORY);
        let file = File::create_new(&path)?;
        let written = inventory::write(root.as_fd(), sums, &file)?;
        match written {
            Some(_) => file.sync_all()?,
            None => std::fs::remove_file(&path)?,
        }
        Ok(written)
    }
}
