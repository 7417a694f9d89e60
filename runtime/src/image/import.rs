//! Imports images from an archive (CRI-456): a tar of an OCI layout, or of `docker save`. Blobs of
//! other platforms may be missing.

use std::sync::Arc;

use serde::Deserialize;
use tokio::io::AsyncRead;

use super::archive::{Archive, bad};
use super::digest::Digest;
use super::error::{Error, blocking};
use super::images::Shared;
use super::ingest::ingest;
use super::manifest::{
    self, CONFIG_MAX, Descriptor, Document, ImageManifest, IndexEntry, MANIFEST_MAX,
};
use super::progress::Progress;
use super::reference::Reference;
use super::spool;
use super::store::record::Names;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    pub id: Digest,
    pub tags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[expect(
    clippy::await_holding_invalid_type,
    reason = "what goes on after it only reads the spool"
)]
pub(super) async fn import(
    shared: &Arc<Shared>,
    from: impl AsyncRead + Send + Unpin + 'static,
    name: Option<Reference>,
    progress: &Progress,
) -> Result<Vec<Imported>, Error> {
    let _turn = shared.imports.lock().await;
    let archive = Arc::new(Archive::read(shared, from).await?);
    let reading = archive.clone();
    let found = blocking(move || reading.images()).await?;
    if found.is_empty() {
        return Err(bad("it has no image for this platform"));
    }
    if name.is_some() && found.len() > 1 {
        return Err(bad(format!(
            "a name is given, but {} images are in it",
            found.len()
        )));
    }
    let mut imported = Vec::new();
    for mut image in found {
        if let Some(name) = &name {
            image.names = vec![name.clone()];
        }
        let first = image.manifests.first();
        let names = Names {
            repo_tags: image.names.iter().filter_map(Reference::repo_tag).collect(),
            repo_digests: first.map_or_else(Vec::new, |digest| {
                image.names.iter().map(|n| n.repo_digest(digest)).collect()
            }),
            manifests: image.manifests,
        };
        let record = ingest(
            shared,
            &image.manifest,
            image.config,
            &names,
            &archive,
            progress,
        );
        let record = record.await?;
        shared.pin_if_configured(&image.names, &record.id).await?;
        imported.push(Imported {
            id: record.id.clone(),
            tags: names.repo_tags,
        });
    }
    Ok(imported)
}

/// An image as the archive describes it.
struct Found {
    manifest: ImageManifest,
    config: spool::Document,
    names: Vec<Reference>,
    /// The document the archive names first, then the manifest.
    manifests: Vec<Digest>,
}

impl Archive {
    /// The images that this machine can run. Blocking.
    fn images(&self) -> Result<Vec<Found>, Error> {
        if let Some(index) = self.named("index.json", MANIFEST_MAX)? {
            let Document::Index(entries) = manifest::parse("index.json", &index)? else {
                return Err(bad("index.json is not an index"));
            };
            let mut found = Vec::new();
            for entry in entries.iter().filter(|e| !e.artifact) {
                found.extend(self.image_of(entry, entries.len() == 1)?);
            }
            return Ok(found);
        }
        match self.named("manifest.json", MANIFEST_MAX)? {
            Some(list) => self.saved_images(&list),
            None => Err(bad("neither index.json nor manifest.json in it")),
        }
    }

    /// The image of an entry of `index.json`; `None` if it is for other machines only.
    fn image_of(&self, entry: &IndexEntry, only: bool) -> Result<Option<Found>, Error> {
        if !only
            && entry.platform.is_some()
            && manifest::choose("index.json", std::slice::from_ref(entry)).is_err()
        {
            return Ok(None);
        }
        let mut manifests = vec![entry.digest.clone()];
        let mut document = self.document(&entry.digest, entry.size)?;
        if let Document::Index(inner) = &document {
            let chosen = manifest::choose(entry.digest.as_str(), inner)?;
            manifests.push(chosen.digest.clone());
            document = self.document(&chosen.digest, chosen.size)?;
        }
        let Document::Image(manifest) = document else {
            return Err(bad("indexes nested too deeply"));
        };
        let config = spool::Document::of(self.blob(&manifest.config, CONFIG_MAX)?);
        // A bare word is a tag without a name, and is ignored.
        let named = |n: &&String| n.contains(['/', ':']);
        let names = entry.name.iter().filter(named).map(|n| n.parse());
        let names = names.collect::<Result<_, _>>()?;
        Ok(Some(Found {
            manifest,
            config,
            names,
            manifests,
        }))
    }

    fn document(&self, digest: &Digest, size: u64) -> Result<Document, Error> {
        let name = digest.to_string();
        let blob = Descriptor {
            digest: Some(digest.clone()),
            size: Some(size),
            name,
        };
        manifest::parse(digest.as_str(), &self.blob(&blob, MANIFEST_MAX)?)
    }

    /// Images of a `docker save` archive.
    fn saved_images(&self, list: &[u8]) -> Result<Vec<Found>, Error> {
        let list: Vec<SavedImage> = serde_json::from_slice(list).map_err(bad)?;
        let mut found = Vec::new();
        for image in list {
            let part = |name: &String| Descriptor {
                digest: None,
                size: None,
                name: name.clone(),
            };
            let config = self
                .named(&image.config, CONFIG_MAX)?
                .map(spool::Document::of)
                .ok_or_else(|| bad(format!("config {} is missing", image.config)))?;
            let mut layers: Vec<_> = image.layers.iter().map(part).collect();
            for layer in &mut layers {
                layer.size = Some(self.size_of(layer)?);
            }
            let names = image.repo_tags.unwrap_or_default();
            found.push(Found {
                manifest: ImageManifest {
                    config: part(&image.config),
                    layers,
                },
                config,
                names: names.iter().map(|n| n.parse()).collect::<Result<_, _>>()?,
                manifests: Vec::new(),
            });
        }
        Ok(found)
    }
}
