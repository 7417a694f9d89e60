//! Stores config and layers of one image: the common part of pull and import.
//!
//! ```text
//! per layer, in parallel     lock(chain, host) ─► present? ─► turn ─► stream + unpack ─┐
//! in order, lowest first                                              commit ◄───┘
//! last                                                        record, then names
//! ```
//!
//! Two images that share layers of one host wait for each other only from the shared layers up.
//! This cannot deadlock: a chain id covers all layers below it, so that all take the locks in one
//! order. If two hosts send the same layer, the first one that has it commits it.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use super::digest::Digest;
use super::error::{Error, blocking};
use super::images::Shared;
use super::layer::Unpacked;
use super::manifest::{Descriptor, ImageManifest};
use super::progress::Progress;
use super::spool::Document;
use super::store::index::Store;
use super::store::record::{BadRecord, ImageRecord, Names, parse_config};
use crate::spans;

/// The span attribute of a layer.
const LAYER: &str = "cairn.layer";

/// Source of blobs: a registry, or an archive.
pub(super) trait Source: Send + Sync + 'static {
    type Error: From<Error> + Display + Send + 'static;

    /// The sender, by which turns are shared out.
    fn host(&self) -> &str;

    /// The stream of the blob; the reader checks size and digest.
    fn open(&self, blob: &Descriptor) -> impl Future<Output = Opened<Self::Error>> + Send;
}

pub(super) type Opened<E> = Result<BoxStream<'static, Result<Bytes, E>>, E>;

/// A layer in progress; others wait for its guard.
struct Made {
    _guard: OwnedMutexGuard<()>,
    /// `None`: another pull has committed it meanwhile.
    unpacked: Option<Unpacked>,
}

/// Stores the image under `names`. Fetches only missing layers.
#[expect(
    clippy::await_holding_invalid_type,
    reason = "each closure has a hold of its own; the last one takes this one"
)]
pub(super) async fn ingest<S: Source>(
    shared: &Arc<Shared>,
    manifest: &ImageManifest,
    config: Document,
    names: &Names,
    source: &Arc<S>,
    progress: &Progress,
) -> Result<Arc<ImageRecord>, S::Error> {
    let (store, layers) = (&shared.store, &manifest.layers);
    let (record, diff_ids, config) = described(manifest, config).await?;
    let hold = store.hold(&record.layers);
    let (bytes, files) = store.usage_of(&record.layers);
    let budget = Arc::new(shared.budget(bytes, files)?);
    let image = shared.turns.image();
    let mut tasks = JoinSet::new();
    for (at, chain_id) in record.layers.iter().enumerate() {
        if store.has_layer(chain_id) {
            continue;
        }
        progress.expect(layers[at].size.unwrap_or(0));
        let (shared, source) = (shared.clone(), source.clone());
        let (chain_id, diff_id) = (chain_id.clone(), diff_ids[at].clone());
        let (blob, progress, budget) = (layers[at].clone(), progress.clone(), budget.clone());
        let digest = blob.digest.clone();
        let work = async move {
            // Pulls from one host fetch it once; a pull from another host does not wait for this
            // one.
            let lock = shared.store.layer_lock(&chain_id.with(source.host()));
            let guard = lock.lock_owned().await;
            let mut made = Made {
                _guard: guard,
                unpacked: None,
            };
            if !shared.store.has_layer(&chain_id) {
                let _turn = shared.turns.take(source.host(), image).await;
                let stream = source.open(&blob).await?;
                let unpacked = shared
                    .unpack(&blob, &diff_id, stream, &budget, &progress)
                    .await?;
                made.unpacked = Some(unpacked);
            }
            Ok::<_, S::Error>((at, made))
        };
        let asker = spans::here();
        tasks.spawn(async move {
            let of = digest.as_ref().map_or("", Digest::as_str);
            let fetch = spans::step_of("fetch and unpack a layer", LAYER, of, work);
            asker.scope(fetch).await
        });
    }
    commit_in_order(store, &record, &diff_ids, tasks).await?;
    let (store, names) = (store.clone(), names.clone());
    // The hold is the closure's, which goes on if this future is dropped.
    Ok(blocking(move || store.put(&hold, &record, Some(&config), &names)).await?)
}

/// The image's record, without names, and the diff ids of its layers.
async fn described(
    manifest: &ImageManifest,
    config: Document,
) -> Result<(ImageRecord, Vec<Digest>, Document), Error> {
    let sizes = manifest.layers.iter().filter_map(|l| l.size);
    let size = sizes.fold(config.bytes, u64::saturating_add);
    let (blob, layers) = (manifest.config.clone(), manifest.layers.len());
    blocking(move || {
        let parsed = config.read(|bytes| {
            let text = std::str::from_utf8(bytes).map_err(|_| blob.fault("is not text"))?;
            let (_, diff_ids) = parse_config(text)?;
            Ok::<_, Error>((ImageRecord::new(text, size)?, diff_ids))
        });
        let (record, diff_ids) = parsed.map_err(|e| BadRecord::Json(e.to_string()))??;
        if diff_ids.len() != layers {
            let why = format!("{layers} layers, but the config lists {}", diff_ids.len());
            return Err(blob.fault(why));
        }
        Ok((record, diff_ids, config))
    })
    .await
}

/// Commits layers as they arrive, each after the one below it.
#[expect(
    clippy::await_holding_invalid_type,
    reason = "the lock of a fetch guards no closure; the commit has its own"
)]
async fn commit_in_order<E: From<Error> + 'static>(
    store: &Arc<Store>,
    record: &ImageRecord,
    diff_ids: &[Digest],
    mut tasks: JoinSet<Result<(usize, Made), E>>,
) -> Result<(), E> {
    let mut waiting = HashMap::new();
    let mut next = 0;
    loop {
        while next < record.layers.len() {
            let chain_id = record.layers[next].clone();
            let Some(made) = waiting.remove(&next) else {
                if store.has_layer(&chain_id) {
                    next += 1;
                    continue;
                }
                break;
            };
            let Made { _guard, unpacked } = made;
            if let Some(unpacked) = unpacked {
                let lowers = store.lowers(&record.layers[..next])?;
                let (store, diff_id) = (store.clone(), diff_ids[next].clone());
                let one = store.layer_lock(&chain_id).lock_owned().await;
                let what = chain_id.clone();
                let commit = blocking(move || {
                    let _one = one;
                    // If all pulls were cancelled, the layer is removed after the commit.
                    let _hold = store.hold(std::slice::from_ref(&chain_id));
                    if store.has_layer(&chain_id) {
                        return Ok(());
                    }
                    unpacked.commit(&store, &chain_id, &diff_id, &lowers)
                });
                spans::step_of("commit a layer", LAYER, &what, commit).await?;
            }
            next += 1;
        }
        match tasks.join_next().await {
            None if next == record.layers.len() => return Ok(()),
            None => return Err(Error::NoLayer(record.layers[next].clone()).into()),
            Some(Ok(made)) => {
                let (at, made) = made?;
                waiting.insert(at, made);
            }
            Some(Err(e)) => return Err(Error::Task(e.to_string()).into()),
        }
    }
}
