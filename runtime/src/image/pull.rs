//! PullImage (CRI-170, CRI-400 to CRI-408): resolves a reference and fetches missing parts.
//!
//! ```text
//! reference ─► HEAD ─► known here under this repository? ─► names only, done
//!                └──► manifest ─► index? choose ─► manifest ─► config ─► layers (ingest) ─► names
//! ```
//!
//! Calls for one reference with the same credentials share one pull, which ends with the last of
//! them.

use std::sync::{Arc, Weak};

use futures_util::TryStreamExt;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::digest::Digest;
use super::error::{Error, blocking};
use super::flights::{Flight, Outcome};
use super::images::{Images, Shared};
use super::ingest::{Source, ingest};
use super::manifest::{self, CONFIG_MAX, Descriptor, Document, ImageManifest};
use super::progress::Progress;
use super::pull_error::PullError;
use super::reference::Reference;
use super::registry::auth::Auth;
use super::registry::host::Host;
use super::registry::hosts::{self, Endpoint};
use super::registry::remote::Remote;
use super::registry::transfer::RemoteBlobs;
use super::spool::{self, Spool};
use super::store::record::{ImageRecord, Names};
use crate::spans;

/// The span attribute of an image.
const IMAGE: &str = "cairn.image";

impl Images {
    /// Pulls an image and returns its id. A call that joins a pull leaves `progress` unused: the
    /// first caller's counts. Dropping the future cancels the pull, unless others wait for it.
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
        let done = outcome.wait_for(Option::is_some).await;
        let done = done.ok().and_then(|done| done.clone());
        drop(flight);
        self.0.flights.tidy();
        done.unwrap_or(Err(PullError::CutShort))
    }

    fn flight(&self, reference: Reference, auth: Auth, progress: &Progress) -> Arc<Flight> {
        let key = (reference.to_string(), auth.clone());
        let mut flights = self.0.flights.0.lock();
        if let Some(flight) = flights.get(&key).and_then(Weak::upgrade)
            && flight.outcome.borrow().is_none()
        {
            return flight;
        }
        let (sender, outcome) = watch::channel(None);
        let (shared, progress) = (self.0.clone(), progress.clone());
        let own = progress.clone();
        let asker = spans::here();
        let task = tokio::spawn(async move {
            let work = pull(&shared, &reference, &auth, &progress);
            let result = asker.scope(work).await;
            // An error means that no caller waits.
            let _ = sender.send(Some(result));
        });
        let flight = Arc::new(Flight {
            outcome,
            _task: AbortOnDropHandle::new(task),
            progress: own,
            since: tokio::time::Instant::now(),
        });
        flights.insert(key, Arc::downgrade(&flight));
        flight
    }
}

/// Hosts for images of `registry`, by the current configuration.
async fn endpoints(shared: &Shared, registry: &str) -> Result<Vec<Endpoint>, PullError> {
    let (config, registry) = (
        shared.options.registry_config_dir.clone(),
        registry.to_owned(),
    );
    let asked = hosts::directories(&config, &registry).collect();
    shared.options.lookups.answer(asked).await?;
    Ok(crate::blocking::blocking(move || hosts::endpoints(&config, &registry)).await?)
}

async fn pull(
    shared: &Arc<Shared>,
    reference: &Reference,
    auth: &Auth,
    progress: &Progress,
) -> Outcome {
    let registry = &reference.registry;
    let endpoints = endpoints(shared, registry).await?;
    let services = shared.options.token_services.get(registry);
    let given = auth.given(registry, services.map_or(&[], Vec::as_slice));
    let given = given.map_err(PullError::Credentials)?;
    let host = |endpoint| Host::new(&shared.clients, endpoint, &given);
    let hosts = endpoints.into_iter().map(host).collect::<Result<_, _>>()?;
    let remote = Arc::new(Remote {
        repository: reference.repository.clone(),
        registry: registry.clone(),
        hosts,
        given,
        stall: shared.options.progress_timeout,
        spool_dir: shared.store.scratch.tmp(),
    });
    let asked = now(shared, &remote, reference);
    if let Some(digest) = spans::step_of("ask the registry", IMAGE, reference, asked).await? {
        let by_digest = Reference {
            tag: None,
            digest: Some(digest.clone()),
            ..reference.clone()
        };
        if let Some(image) = shared.store.named(&by_digest) {
            match rename(shared, &image, &names(reference, vec![digest])).await {
                Ok(()) => return pin(shared, reference, image.id.clone()).await,
                Err(Error::NoLayer(_) | Error::NoImage(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    let found = spans::step_of(
        "fetch the manifest",
        IMAGE,
        reference,
        find(&remote, reference),
    );
    let (image, manifests) = found.await?;
    let source = Arc::new(RemoteBlobs(remote));
    let config = config(shared, &source, &image.config);
    let config = spans::step("fetch the config", config).await?;
    let names = names(reference, manifests);
    let record = ingest(shared, &image, config, &names, &source, progress).await?;
    pin(shared, reference, record.id.clone()).await
}

/// The current digest of the reference at the registry: stored content, too, is only for those whom
/// its registry serves. Asked only if the store has content of this repository: content from
/// elsewhere does not prove that this registry has it.
async fn now(
    shared: &Shared,
    remote: &Remote,
    reference: &Reference,
) -> Result<Option<Digest>, PullError> {
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
    match remote.head(reference.manifest_name()).await {
        Ok(current) => Ok(reference.digest.clone().or(current)),
        // A registry may refuse HEAD and answer GET. An unreachable one fails at both.
        Err(PullError::NotFound { .. } | PullError::Registry { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Adds names to a stored image; writes nothing if they are known. `NoLayer` or `NoImage` if it was
/// just removed, or is not on the disk.
async fn rename(shared: &Shared, image: &Arc<ImageRecord>, names: &Names) -> Result<(), Error> {
    let (store, image, names) = (shared.store.clone(), image.clone(), names.clone());
    blocking(move || {
        let hold = store.hold(&image.layers);
        if let Some(missing) = image.layers.iter().find(|l| !store.has_layer(l)) {
            return Err(Error::NoLayer(missing.clone()));
        }
        if !store.is_durable(&image.id) {
            return Err(Error::NoImage(image.id.clone()));
        }
        let now = store.get(&image.id).filter(|now| now.has_names(&names));
        if now.is_none() {
            store.put(&hold, &image, None, &names)?;
        }
        Ok(())
    })
    .await
}

async fn pin(shared: &Shared, reference: &Reference, id: Digest) -> Outcome {
    let names = std::slice::from_ref(reference);
    shared.pin_if_configured(names, &id).await?;
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

/// The manifest of the image for this machine, and the digests of the document that the reference
/// names and of the manifest chosen from it.
async fn find(
    remote: &Remote,
    reference: &Reference,
) -> Result<(ImageManifest, Vec<Digest>), PullError> {
    let what = reference.to_string();
    let (mut document, digest) = manifest(remote, reference.manifest_name(), &what).await?;
    let mut manifests = vec![digest];
    if let Document::Index(entries) = &document {
        let chosen = manifest::choose(&what, entries)?.digest.clone();
        let (next, digest) = manifest(remote, chosen.as_str(), chosen.as_str()).await?;
        manifests.push(digest);
        document = next;
    }
    match document {
        Document::Image(image) => Ok((image, manifests)),
        Document::Index(_) => Err(manifest::fault(&what, "nested index").into()),
    }
}

/// A manifest or index by tag or digest, and its digest; `what` names it in an error.
async fn manifest(
    remote: &Remote,
    name: &str,
    what: &str,
) -> Result<(Document, Digest), PullError> {
    let (came, digest) = remote.manifest(name).await?;
    let what = what.to_owned();
    let parsed = blocking(move || {
        let parsed = came.read(|bytes| manifest::parse(&what, bytes));
        parsed.map_err(|e| manifest::fault(&what, e.to_string()))?
    });
    Ok((parsed.await?, digest))
}

/// Fetches a config, bounded and checked against its digest.
async fn config(
    shared: &Shared,
    source: &RemoteBlobs,
    blob: &Descriptor,
) -> Result<spool::Document, PullError> {
    let dir = shared.store.scratch.tmp();
    let mut spool = Spool::new(&dir);
    let mut chunks = source.open(blob).await?;
    while let Some(chunk) = chunks.try_next().await? {
        if spool.bytes() + chunk.len() as u64 > blob.size.unwrap_or(CONFIG_MAX).min(CONFIG_MAX) {
            return Err(blob.fault("is longer than its manifest says").into());
        }
        let kept = spool.push(&chunk);
        kept.map_err(Error::io("image store", "spool a config", &dir))?;
    }
    let (config, digest) = spool.finish();
    match &blob.digest {
        Some(want) if *want != digest => Err(blob.fault("digest mismatch").into()),
        _ => Ok(config),
    }
}
