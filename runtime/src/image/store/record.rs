//! Record of one image, and its form on disk: one JSON file per image, named by its id.
//!
//! The id is the digest of the config, which proves a record when it is read. The config itself is
//! only in the file: it may have megabytes, and a node many images.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::image::digest::Digest;
use crate::image::reference::Reference;

const SCHEMA: u32 = 1;
/// Layers of one image: more than any tool makes; overlayfs itself stops at 500.
pub(crate) const LAYERS_MAX: usize = 500;
/// Entries of one list in a config, such as the environment.
const LIST_MAX: usize = 10_000;
/// Bytes of a config that are kept in memory; an `execve` takes no more.
const KEPT_MAX: usize = 512 << 10;

/// One image. Immutable: a change makes a new record.
#[derive(Debug, Clone)]
pub struct ImageRecord {
    /// Digest of the config's exact bytes: `Image.id` and `ContainerStatus.image_id` (CRI-170).
    pub id: Digest,
    /// `registry/repository:tag`, sorted (CRI-172).
    pub repo_tags: Vec<String>,
    /// `registry/repository@sha256:…`, sorted (CRI-172).
    pub repo_digests: Vec<String>,
    /// Manifests and indexes that lead to this image (CRI-408).
    pub manifests: Vec<Digest>,
    /// Bytes of the config and of the layers as transferred (compressed); never 0.
    pub size: u64,
    pub run: RunConfig,
    /// Chain ids of the layers, lowest first.
    pub layers: Vec<Digest>,
    pub pinned: bool,
}

/// The settings of a config for running the image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    #[serde(deserialize_with = "list")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "list")]
    pub cmd: Vec<String>,
    #[serde(deserialize_with = "list")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "text")]
    pub user: String,
    #[serde(deserialize_with = "text")]
    pub working_dir: String,
    #[serde(deserialize_with = "list")]
    pub volumes: Vec<String>,
    #[serde(deserialize_with = "text")]
    pub stop_signal: String,
}

/// Error of parsing an image config or record.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BadRecord {
    #[error("not readable: {0}")]
    Json(String),
    #[error("unsupported schema {0}")]
    Schema(u32),
    #[error("config digest mismatch (expected {0})")]
    Digest(Digest),
    #[error("the config lists {0} layers (limit {LAYERS_MAX})")]
    Layers(usize),
    #[error("diff id: {0}")]
    DiffId(#[from] crate::image::digest::BadDigest),
    #[error("not an image: rootfs type {0:?}")]
    NotLayers(String),
    #[error("the config has {0} bytes of environment, command and volumes (limit {KEPT_MAX})")]
    Kept(usize),
}

#[derive(Serialize, Deserialize)]
struct OnDisk<'a> {
    schema: u32,
    id: Digest,
    repo_tags: Vec<String>,
    repo_digests: Vec<String>,
    manifests: Vec<Digest>,
    size: u64,
    pinned: bool,
    #[serde(borrow)]
    config: Cow<'a, str>,
}

/// New names of an image.
#[derive(Debug, Clone, Default)]
pub struct Names {
    pub repo_tags: Vec<String>,
    pub repo_digests: Vec<String>,
    pub manifests: Vec<Digest>,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(rename = "architecture")]
    _architecture: IgnoredAny,
    #[serde(rename = "os")]
    _os: IgnoredAny,
    config: Option<RunConfig>,
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
struct RawRootfs {
    #[serde(rename = "type")]
    kind: String,
    diff_ids: Strings,
}

/// A list of strings, or the keys of a map. An overlong one is refused while it is read.
#[derive(Default)]
struct Strings(Vec<String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Strings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "up to {LIST_MAX} strings")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strings, A::Error> {
                bounded(|| seq.next_element())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                bounded(|| Ok(map.next_entry::<_, IgnoredAny>()?.map(|(key, _)| key)))
            }
        }
        fn bounded<E: serde::de::Error>(
            mut next: impl FnMut() -> Result<Option<String>, E>,
        ) -> Result<Strings, E> {
            let mut all = Vec::new();
            while let Some(text) = next()? {
                if all.len() == LIST_MAX {
                    return Err(E::invalid_length(LIST_MAX + 1, &Reader));
                }
                all.push(text);
            }
            Ok(Strings(all))
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A list, which may be `null`.
fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Strings>::deserialize(deserializer)?
        .unwrap_or_default()
        .0)
}

/// As [`list`].
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl RunConfig {
    fn bytes(&self) -> usize {
        let lists = [&self.entrypoint, &self.cmd, &self.env, &self.volumes];
        let texts = [&self.user, &self.working_dir, &self.stop_signal];
        let all = lists.into_iter().flatten().chain(texts);
        all.map(String::len).sum()
    }
}

/// The run settings of a config, and its diff ids, lowest layer first.
pub(crate) fn parse_config(json: &str) -> Result<(RunConfig, Vec<Digest>), BadRecord> {
    let raw: RawConfig = serde_json::from_str(json).map_err(|e| BadRecord::Json(e.to_string()))?;
    if raw.rootfs.kind != "layers" {
        return Err(BadRecord::NotLayers(
            raw.rootfs.kind.chars().take(40).collect(),
        ));
    }
    let diff_ids = raw.rootfs.diff_ids.0;
    if diff_ids.len() > LAYERS_MAX {
        return Err(BadRecord::Layers(diff_ids.len()));
    }
    let diff_ids = diff_ids
        .iter()
        .map(|d| d.parse())
        .collect::<Result<_, _>>()?;
    let run = raw.config.unwrap_or_default();
    match run.bytes() {
        bytes if bytes > KEPT_MAX => Err(BadRecord::Kept(bytes)),
        _ => Ok((run, diff_ids)),
    }
}

/// The chain ids of these layers, lowest first.
fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain = Vec::<Digest>::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        chain.push(Digest::chain(chain.last(), diff_id));
    }
    chain
}

impl ImageRecord {
    /// A new image of this config, without names. `size` is at least 1: to clients an image of size
    /// 0 is broken (CRI-171).
    pub fn new(config_json: &str, size: u64) -> Result<Self, BadRecord> {
        let (run, diff_ids) = parse_config(config_json)?;
        Ok(Self {
            id: Digest::of(config_json.as_bytes()),
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            manifests: Vec::new(),
            size: size.max(1),
            layers: chain_ids(&diff_ids),
            run,
            pinned: false,
        })
    }

    /// The same image with these names added.
    pub fn with_names(&self, names: &Names) -> Self {
        let mut next = self.clone();
        merge(&mut next.repo_tags, &names.repo_tags);
        merge(&mut next.repo_digests, &names.repo_digests);
        merge(&mut next.manifests, &names.manifests);
        next
    }

    /// Whether the image already has all these names.
    pub fn has_names(&self, names: &Names) -> bool {
        fn all<T: PartialEq>(have: &[T], want: &[T]) -> bool {
            want.iter().all(|name| have.contains(name))
        }
        all(&self.repo_tags, &names.repo_tags)
            && all(&self.repo_digests, &names.repo_digests)
            && all(&self.manifests, &names.manifests)
    }

    /// Whether this reference, by its digest if present, names the image.
    pub fn answers_to(&self, reference: &Reference) -> bool {
        match (&reference.digest, reference.repo_tag()) {
            (Some(digest), _) => {
                let name = format!("{}@", reference.name());
                self.repo_digests.contains(&reference.repo_digest(digest))
                    || (self.manifests.contains(digest)
                        && self.repo_digests.iter().any(|d| d.starts_with(&name)))
            }
            (None, Some(tag)) => self.repo_tags.contains(&tag),
            (None, None) => false,
        }
    }

    /// The record's file; `config_json` is the unchanged config.
    pub fn to_json(&self, config_json: &str) -> Vec<u8> {
        let on_disk = OnDisk {
            schema: SCHEMA,
            id: self.id.clone(),
            repo_tags: self.repo_tags.clone(),
            repo_digests: self.repo_digests.clone(),
            manifests: self.manifests.clone(),
            size: self.size,
            pinned: self.pinned,
            config: config_json.into(),
        };
        // Strings and numbers only: this cannot fail.
        serde_json::to_vec_pretty(&on_disk).unwrap_or_default()
    }

    pub fn from_json(bytes: &[u8]) -> Result<Self, BadRecord> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let json = |e: serde_json::Error| BadRecord::Json(e.to_string());
        let version: Version = serde_json::from_slice(bytes).map_err(json)?;
        if version.schema != SCHEMA {
            return Err(BadRecord::Schema(version.schema));
        }
        let on_disk: OnDisk = serde_json::from_slice(bytes).map_err(json)?;
        let mut record = Self::new(&on_disk.config, on_disk.size)?;
        if record.id != on_disk.id {
            return Err(BadRecord::Digest(on_disk.id));
        }
        record.repo_tags = on_disk.repo_tags;
        record.repo_digests = on_disk.repo_digests;
        record.manifests = on_disk.manifests;
        record.pinned = on_disk.pinned;
        Ok(record)
    }
}

/// The unchanged config in a record's file.
pub(crate) fn config_json(record: &[u8]) -> Result<String, BadRecord> {
    let on_disk: OnDisk =
        serde_json::from_slice(record).map_err(|e| BadRecord::Json(e.to_string()))?;
    Ok(on_disk.config.into_owned())
}

/// Adds missing items; sorted, so that equal sets give equal messages.
fn merge<T: Ord + Clone>(into: &mut Vec<T>, from: &[T]) {
    into.extend(from.iter().cloned());
    into.sort();
    into.dedup();
}

#[cfg(test)]
#[path = "record_tests.rs"]
pub(super) mod tests;
