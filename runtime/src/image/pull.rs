//! PullImage (CRI-170, CRI-400 to CRI-408): what a reference means now, and what of it is missing.
//!
//! ```text
//! tag ─► HEAD ─► known here under this repository? ─► names only, done
//!          └──► manifest ─► index? choose ─► manifest ─► config ─► layers (ingest) ─► names
//! ```
//!
//! Pulls of one reference with the same credentials are one: whoever comes later waits with the
//! first. When the last of them is gone, so is the work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::TryStreamExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::auth::Auth;
use super::digest::{BadDigest, Digest};
use super::hosts::{self, BadHosts};
use super::ingest::{Source, ingest};
use super::manifest::{self, CONFIG_MAX, Descriptor, Document, ImageManifest};
use super::record::{ImageRecord, Names};
use super::reference::{BadReference, Reference};
use super::registry::Remote;
use super::transfer::RemoteBlobs;
use super::{Error, Images, Progress, Shared, blocking};

/// Why an image was not pulled. One line each; no secrets.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PullError {
    #[error(transparent)]
    Reference(#[from] BadReference),
    #[error("credentials: {0}")]
    Credentials(&'static str),
    #[error(transparent)]
    Hosts(#[from] BadHosts),
    /// Nothing answers (CRI-407: clients look for the prefix).
    #[error("RegistryUnavailable: {host}: {why}")]
    Unavailable { host: String, why: String },
    #[error("RegistryUnavailable: {host} sends nothing")]
    Stalled { host: String },
    #[error("{host}: {what}: manifest unknown")]
    NotFound { host: String, what: String },
    #[error("{host} does not know who asks: {why}")]
    Unauthenticated { host: String, why: String },
    #[error("{host} refuses: {why}")]
    Denied { host: String, why: String },
    #[error("{host}: {why}")]
    Registry { host: String, why: String },
    #[error(transparent)]
    Store(#[from] Error),
    #[error("the pull was cut short")]
    CutShort,
}

impl PullError {
    /// Whether another host's answer is worth more than this one's.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            PullError::Unavailable { .. } | PullError::Stalled { .. }
        )
    }
}

impl From<BadDigest> for PullError {
    fn from(e: BadDigest) -> Self {
        PullError::Store(Error::Archive(e.to_string()))
    }
}

type Outcome = Result<Digest, PullError>;
type Key = (String, Auth);

/// Pulls under way.
#[derive(Default)]
pub struct Flights(Mutex<HashMap<Key, Weak<Flight>>>);

impl Flights {
    /// Forgets pulls that are over, and with them the credentials they were asked with.
    fn tidy(&self) {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.strong_count() > 0);
    }
}

/// One pull; it is given up when nobody holds it.
struct Flight {
    outcome: watch::Receiver<Option<Outcome>>,
    task: JoinHandle<()>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Images {
    /// Pulls an image and gives its id. `progress` is that of the pull this one joins, if it joins
    /// one: the first caller's. Dropping the future gives the pull up, unless others wait for it.
    pub async fn pull(
        &self,
        reference: &str,
        auth: Option<Auth>,
        progress: &Progress,
    ) -> Result<Digest, PullError> {
        let reference: Reference = reference.parse()?;
        let auth = auth.unwrap_or_default();
        let flight = self.flight(reference, auth, progress);
        let mut outcome = flight.outcome.clone();
        let done = outcome
            .wait_for(Option::is_some)
            .await
            .map(|done| done.clone());
        drop(flight);
        self.0.flights.tidy();
        done.ok().flatten().unwrap_or(Err(PullError::CutShort))
    }

    fn flight(&self, reference: Reference, auth: Auth, progress: &Progress) -> Arc<Flight> {
        let key = (reference.to_string(), auth.clone());
        let mut flights = self
            .0
            .flights
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&key).and_then(Weak::upgrade)
            && flight.outcome.borrow().is_none()
        {
            return flight;
        }
        let (tell, outcome) = watch::channel(None);
        let (shared, progress) = (self.0.clone(), progress.clone());
        let task = tokio::spawn(async move {
            let result = pull(&shared, &reference, &auth, &progress).await;
            // Nobody listens any more: then nobody needs the answer.
            let _ = tell.send(Some(result));
        });
        let flight = Arc::new(Flight { outcome, task });
        flights.insert(key, Arc::downgrade(&flight));
        flight
    }
}

async fn pull(shared: &Shared, reference: &Reference, auth: &Auth, progress: &Progress) -> Outcome {
    let known = |reference: &Reference| {
        shared
            .store
            .list()
            .into_iter()
            .find(|image| image.answers_to(reference))
    };
    if reference.digest.is_some()
        && let Some(image) = known(reference)
    {
        // Content by digest cannot have changed.
        return Ok(image.id.clone());
    }
    let registry = &reference.registry;
    let endpoints = hosts::endpoints(shared.options.registry_config_dir.as_deref(), registry)?;
    let credentials = auth.credentials(registry).map_err(PullError::Credentials)?;
    let stall = shared.options.progress_timeout;
    let remote = Remote::new(
        &shared.clients,
        endpoints,
        registry,
        &reference.repository,
        credentials,
        stall,
    )?;
    let remote = Arc::new(remote);
    if let Some(digest) = now(shared, &remote, reference).await? {
        let by_digest = Reference {
            tag: None,
            digest: Some(digest.clone()),
            ..reference.clone()
        };
        if let Some(image) = known(&by_digest) {
            match rename(shared, &image, &names(reference, vec![digest])).await {
                Ok(()) => return pin(shared, reference, image.id.clone()).await,
                Err(Error::NoLayer(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    let found = find(&remote, reference).await?;
    let source = Arc::new(RemoteBlobs(remote));
    let config = small_blob(&source, &found.image.config).await?;
    let names = names(reference, found.manifests);
    let (store, unpacker) = (&shared.store, &shared.unpacker);
    let record = ingest(
        store,
        unpacker,
        &found.image,
        config,
        &names,
        &source,
        progress,
    )
    .await?;
    pin(shared, reference, record.id.clone()).await
}

/// The digest the tag has now. Asked only if something of that repository is here: content known
/// from elsewhere is no proof that this registry has it too.
async fn now(
    shared: &Shared,
    remote: &Remote,
    reference: &Reference,
) -> Result<Option<Digest>, PullError> {
    let (Some(tag), None) = (&reference.tag, &reference.digest) else {
        return Ok(None);
    };
    let repository = format!("{}@", reference.name());
    let of_repository = |digest: &String| digest.starts_with(&repository);
    if !shared
        .store
        .list()
        .iter()
        .any(|image| image.repo_digests.iter().any(of_repository))
    {
        return Ok(None);
    }
    match remote.head(tag).await {
        Ok(digest) => Ok(digest),
        // Not every registry answers HEAD as it answers GET; those that cannot be spoken to at all
        // will not do it the second time.
        Err(PullError::NotFound { .. } | PullError::Registry { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Adds names to an image that is here; nothing is written if nothing changes. `NoLayer` if the
/// image was removed a moment ago and its layers are on their way out.
async fn rename(shared: &Shared, image: &Arc<ImageRecord>, names: &Names) -> Result<(), Error> {
    let (store, image, names) = (shared.store.clone(), image.clone(), names.clone());
    blocking(move || {
        let _hold = store.hold(&image.layers);
        if let Some(missing) = image.layers.iter().find(|l| !store.has_layer(l)) {
            return Err(Error::NoLayer(missing.clone()));
        }
        let now = store.get(&image.id).filter(|now| now.has_names(&names));
        if now.is_none() || !store.is_durable(&image.id) {
            store.put(&image, &names)?;
        }
        Ok(())
    })
    .await
}

async fn pin(shared: &Shared, reference: &Reference, id: Digest) -> Outcome {
    if shared.options.pinned.contains(reference) {
        let store = shared.store.clone();
        let pinned = id.clone();
        blocking(move || store.pin(&pinned, true)).await?;
    }
    Ok(id)
}

fn names(reference: &Reference, manifests: Vec<Digest>) -> Names {
    let asked = reference.digest.as_ref().or(manifests.first());
    Names {
        repo_tags: reference.repo_tag().into_iter().collect(),
        repo_digests: asked
            .map(|d| reference.repo_digest(d))
            .into_iter()
            .collect(),
        manifests,
    }
}

/// The manifest of the image for this machine.
struct FoundImage {
    image: ImageManifest,
    /// What the reference leads to, then the manifest chosen from it.
    manifests: Vec<Digest>,
}

async fn find(remote: &Remote, reference: &Reference) -> Result<FoundImage, PullError> {
    let (bytes, digest) = remote.manifest(reference.manifest_name()).await?;
    let what = reference.to_string();
    let mut manifests = vec![digest];
    let mut document = manifest::parse(&what, &bytes)?;
    if let Document::Index(entries) = &document {
        let chosen = manifest::choose(&what, entries)?.digest.clone();
        let (bytes, digest) = remote.manifest(chosen.as_str()).await?;
        manifests.push(digest);
        document = manifest::parse(chosen.as_str(), &bytes)?;
    }
    match document {
        Document::Image(image) => Ok(FoundImage { image, manifests }),
        Document::Index(_) => {
            let why = "an index in an index".to_owned();
            Err(Error::Manifest {
                manifest: what,
                why,
            }
            .into())
        }
    }
}

/// A config: small, text, and what its digest says.
async fn small_blob(source: &RemoteBlobs, blob: &Descriptor) -> Result<String, PullError> {
    let mut bytes = Vec::new();
    let mut chunks = source.open(blob).await?;
    while let Some(chunk) = chunks.try_next().await? {
        if (bytes.len() + chunk.len()) as u64 > blob.size.unwrap_or(CONFIG_MAX).min(CONFIG_MAX) {
            return Err(blob.fault("is longer than its manifest says").into());
        }
        bytes.extend_from_slice(&chunk);
    }
    if blob
        .digest
        .as_ref()
        .is_some_and(|d| *d != Digest::of(&bytes))
    {
        return Err(blob.fault("does not have its digest").into());
    }
    String::from_utf8(bytes).map_err(|_| blob.fault("is not text").into())
}
