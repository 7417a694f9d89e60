//! Turns a layer's stream into a committed layer: feeds the helper, checks both digests, completes
//! the tree, makes it durable, and commits it.
//!
//! ```text
//! stream ──► digest ──► helper (own process) ──► tmp/<n>/fs ──► marks ──► syncfs ──► rename
//! ```
//!
//! A layer exists only after the rename. A dropped future kills the helper and removes `tmp/<n>`.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;

use super::digest::{Digest, Hasher};
use super::error::{Error, blocking};
use super::finish::finish;
use super::helper::{Ended, Task};
use super::images::Shared;
use super::manifest::Descriptor;
use super::progress::Progress;
use super::spool::Document;
use super::store::index::Store;
use super::store::layer_record::{LayerInfo, SCHEMA};
use super::store::scratch::TempDir;
use super::unpack::limits::TreeBounds;
use super::unpack::{LAYER, REPORT_MAX, Report, Summary};

/// Locked while a long report is in memory: the work on it may take a while.
static LONG_REPORT: Mutex<()> = Mutex::new(());

/// The remaining room of an image while its layers are unpacked in parallel.
pub(super) struct Budget {
    bounds: TreeBounds,
    /// Bytes and files.
    left: Mutex<(u64, u64)>,
}

impl Budget {
    /// Subtracts the usage of a layer, or of several; an excess is an error.
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
    /// The helper's report, and the part of it that stays in memory.
    report: Document,
    summary: Summary,
}

impl Shared {
    /// Returns the budget of an image with this many bytes and files already in the store.
    pub(super) fn budget(&self, bytes: u64, files: u64) -> Result<Budget, Error> {
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
        // In a file: a long report that waits for its turn takes no memory.
        let report = tempfile::tempfile_in(&tmp.path);
        let report = report.map_err(Error::io("unpack helper", "make a report for", &fs))?;
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
        let task = Task {
            kind: LAYER,
            dir: &fs,
            limits: &limits,
        };
        let ended = self.run_helper(task, &report, stream, each, stalled);
        let ended = ended.await?;
        ended_well(blob, hasher, &ended)?;
        let (blob, diff_id) = (blob.clone(), diff_id.clone());
        let (report, summary) = blocking(move || check_report(&blob, &diff_id, report)).await?;
        budget.take(summary.disk_bytes, summary.inodes)?;
        Ok(Unpacked {
            tmp,
            report,
            summary,
        })
    }
}

/// Checks that the helper got the blob's size and digest, and succeeded.
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

/// Reads the helper's report, which must be about the config's layer. Blocking.
fn check_report(
    blob: &Descriptor,
    diff_id: &Digest,
    report: File,
) -> Result<(Document, Summary), Error> {
    let unreadable = |e: String| blob.fault(format!("unpack: unreadable report: {e}"));
    let report = Document::from_file(report).map_err(|e| unreadable(e.to_string()))?;
    if report.bytes > REPORT_MAX {
        return Err(unreadable(format!("of {} bytes", report.bytes)));
    }
    let summary = report
        .read(|bytes| serde_json::from_slice::<Summary>(bytes).map_err(|e| e.to_string()))
        .map_err(|e| unreadable(e.to_string()))?
        .map_err(unreadable)?;
    if summary.diff_id != *diff_id {
        let got = &summary.diff_id;
        return Err(blob.fault(format!("unpacks to {got}, but the config says {diff_id}")));
    }
    Ok((report, summary))
}

impl Unpacked {
    /// Completes the tree upon `lowers` (topmost first), makes it durable and commits it. Blocking.
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
        let long = self.report.is_long().then(|| LONG_REPORT.lock());
        let report = self
            .report
            .read(|bytes| serde_json::from_slice::<Report>(bytes));
        let report = report.map_err(Error::layer(chain_id, "report"))?;
        let report = report.map_err(Error::layer(chain_id, "report"))?;
        let opaque = finish(chain_id, &root, lowers, &report)?;
        drop((report, long));
        crate::fault::point("image.layer.flush").map_err(Error::layer(chain_id, "fault"))?;
        // One flush for all files of the layer (CRI-445), before any record is written.
        rustix::fs::syncfs(&root).map_err(Error::layer(chain_id, "flush"))?;
        crate::fault::point("image.layer.commit").map_err(Error::layer(chain_id, "fault"))?;
        let info = LayerInfo {
            schema: SCHEMA,
            chain_id: chain_id.clone(),
            diff_id: diff_id.clone(),
            disk_bytes: self.summary.disk_bytes,
            inodes: self.summary.inodes,
            opaque,
        };
        store.commit_layer(&self.tmp, info)
    }
}
