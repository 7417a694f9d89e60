//! Config and layers of one image into the store: the common part of pull and import.
//!
//! ```text
//! per layer, in parallel     lock(chain) ─► present? ─► turn ─► stream + unpack ─┐
//! in order, lowest first                                              commit ◄───┘
//! last                                                        record, then names
//! ```
//!
//! Two images that share layers wait for each other's only from the shared ones up, never in a
//! ring: a chain id names all that is below it, so locks are needed in the same order by all.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use super::layer::{Unpacked, Unpacker};
use super::manifest::{Descriptor, ImageManifest};
use super::record::{ImageRecord, Names, parse_config};
use super::store::Store;
use super::{Error, Progress, blocking};

/// Where blobs come from: a registry, or an archive.
pub trait Source: Send + Sync + 'static {
    type Error: From<Error> + Send + 'static;

    /// The blob's bytes as they come; the reader checks size and digest.
    fn open(&self, blob: &Descriptor) -> impl Future<Output = Opened<Self::Error>> + Send;
}

pub type Opened<E> = Result<BoxStream<'static, Result<Bytes, E>>, E>;

/// A layer that is being made here; the guard lets others wait for it.
struct Made {
    _guard: OwnedMutexGuard<()>,
    /// None: somebody else has committed it meanwhile.
    unpacked: Option<Unpacked>,
}

/// Stores the image and gives it `names`. Only what is missing is fetched.
pub async fn ingest<S: Source>(
    store: &Arc<Store>,
    unpacker: &Arc<Unpacker>,
    manifest: &ImageManifest,
    config_json: String,
    names: &Names,
    source: &Arc<S>,
    progress: &Progress,
) -> Result<Arc<ImageRecord>, S::Error> {
    let layers = &manifest.layers;
    let (_, diff_ids) = parse_config(&config_json).map_err(Error::from)?;
    if diff_ids.len() != layers.len() {
        let why = format!(
            "{} layers, but the config lists {}",
            layers.len(),
            diff_ids.len()
        );
        return Err(manifest.config.fault(&why).into());
    }
    let size = layers
        .iter()
        .filter_map(|l| l.size)
        .fold(config_json.len() as u64, u64::saturating_add);
    let record = ImageRecord::new(config_json, size).map_err(Error::from)?;
    let _hold = store.hold(&record.layers);
    let mut tasks = JoinSet::new();
    for (at, chain_id) in record.layers.iter().enumerate() {
        if store.has_layer(chain_id) {
            continue;
        }
        progress.expect(layers[at].size.unwrap_or(0));
        let (store, unpacker, source) = (store.clone(), unpacker.clone(), source.clone());
        let (chain_id, diff_id) = (chain_id.clone(), diff_ids[at].clone());
        let (blob, progress) = (layers[at].clone(), progress.clone());
        tasks.spawn(async move {
            let guard = store.layer_lock(&chain_id).lock_owned().await;
            if store.has_layer(&chain_id) {
                return Ok((
                    at,
                    Made {
                        _guard: guard,
                        unpacked: None,
                    },
                ));
            }
            let _turn = unpacker.turn().await;
            let stream = source.open(&blob).await?;
            let unpacked = unpacker
                .unpack(&store, &blob, &diff_id, stream, &progress)
                .await?;
            Ok::<_, S::Error>((
                at,
                Made {
                    _guard: guard,
                    unpacked: Some(unpacked),
                },
            ))
        });
    }
    commit_in_order(store, &record, &diff_ids, tasks).await?;
    let (store, names) = (store.clone(), names.clone());
    Ok(blocking(move || store.put(&record, &names)).await?)
}

/// Commits layers as they come, each after the one below it.
async fn commit_in_order<E: From<Error> + 'static>(
    store: &Arc<Store>,
    record: &ImageRecord,
    diff_ids: &[super::digest::Digest],
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
                blocking(move || {
                    // Given up meanwhile, by all: then the layer goes as it comes.
                    let _hold = store.hold(std::slice::from_ref(&chain_id));
                    unpacked.commit(&store, &chain_id, &diff_id, &lowers)
                })
                .await?;
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
