//! What is known of one image, and its form on disk: one JSON file per image, named by its id.
//!
//! The id is the digest of the config, so a record proves itself when it is read back.

use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::reference::Reference;

const SCHEMA: u32 = 1;
/// Layers in one image: more than any tool makes; overlayfs itself stops at 500.
pub const LAYERS_MAX: usize = 500;

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
    pub config: ImageConfiguration,
    /// The config as it came; verbose status shows it (CRI-177).
    pub config_json: String,
    /// Chain ids of the layers, lowest first.
    pub layers: Vec<Digest>,
    pub pinned: bool,
}

/// Why a text is no usable image config or record.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BadRecord {
    #[error("not readable: {0}")]
    Json(String),
    #[error("written by another version (schema {0})")]
    Schema(u32),
    #[error("the config does not have the digest {0}")]
    Digest(Digest),
    #[error("the config lists {0} layers, at most {LAYERS_MAX} are taken")]
    Layers(usize),
    #[error("diff id: {0}")]
    DiffId(#[from] super::digest::BadDigest),
    #[error("not an image: rootfs type {0:?}")]
    NotLayers(String),
}

#[derive(Serialize, Deserialize)]
struct OnDisk {
    schema: u32,
    id: Digest,
    repo_tags: Vec<String>,
    repo_digests: Vec<String>,
    manifests: Vec<Digest>,
    size: u64,
    pinned: bool,
    config: String,
}

/// Names an image is to be known by from now on.
#[derive(Debug, Clone, Default)]
pub struct Names {
    pub repo_tags: Vec<String>,
    pub repo_digests: Vec<String>,
    pub manifests: Vec<Digest>,
}

/// User and group of an image config, as text: `uid|name[:gid|group]` (CRI-173, CRI-215).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageUser {
    pub user: Option<Named>,
    pub group: Option<Named>,
}

/// A number, or a name to be looked up inside the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    Id(u32),
    Name(String),
}

impl Named {
    fn parse(text: &str) -> Option<Self> {
        match text.parse() {
            _ if text.is_empty() => None,
            Ok(id) => Some(Named::Id(id)),
            Err(_) => Some(Named::Name(text.to_owned())),
        }
    }
}

/// The parsed config and the diff ids it lists, lowest layer first.
pub fn parse_config(json: &str) -> Result<(ImageConfiguration, Vec<Digest>), BadRecord> {
    let config: ImageConfiguration =
        serde_json::from_str(json).map_err(|e| BadRecord::Json(e.to_string()))?;
    if config.rootfs().typ() != "layers" {
        return Err(BadRecord::NotLayers(
            config.rootfs().typ().chars().take(40).collect(),
        ));
    }
    let diff_ids = config.rootfs().diff_ids();
    if diff_ids.len() > LAYERS_MAX {
        return Err(BadRecord::Layers(diff_ids.len()));
    }
    let diff_ids = diff_ids
        .iter()
        .map(|d| d.parse())
        .collect::<Result<_, _>>()?;
    Ok((config, diff_ids))
}

/// The chain ids of these layers, lowest first.
pub fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain = Vec::<Digest>::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        chain.push(Digest::chain(chain.last(), diff_id));
    }
    chain
}

impl ImageRecord {
    /// A new image of this config, without names yet. `size` of 0 is lifted to 1: clients take
    /// an image of size 0 for a broken one (CRI-171).
    pub fn new(config_json: String, size: u64) -> Result<Self, BadRecord> {
        let (config, diff_ids) = parse_config(&config_json)?;
        Ok(Self {
            id: Digest::of(config_json.as_bytes()),
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            manifests: Vec::new(),
            size: size.max(1),
            layers: chain_ids(&diff_ids),
            config,
            config_json,
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

    /// Whether all these names are the image's already.
    pub fn has_names(&self, names: &Names) -> bool {
        fn all<T: PartialEq>(have: &[T], want: &[T]) -> bool {
            want.iter().all(|name| have.contains(name))
        }
        all(&self.repo_tags, &names.repo_tags)
            && all(&self.repo_digests, &names.repo_digests)
            && all(&self.manifests, &names.manifests)
    }

    /// The same image without this tag.
    pub fn without_tag(&self, tag: &str) -> Self {
        let mut next = self.clone();
        next.repo_tags.retain(|t| t != tag);
        next
    }

    /// Whether this reference, taken by its digest if it has one, names the image.
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

    /// User and group of the config (CRI-173).
    pub fn user(&self) -> ImageUser {
        let text = self
            .config
            .config()
            .as_ref()
            .and_then(|c| c.user().as_deref())
            .unwrap_or("");
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        ImageUser {
            user: Named::parse(user),
            group: Named::parse(group),
        }
    }

    pub fn to_json(&self) -> Vec<u8> {
        let on_disk = OnDisk {
            schema: SCHEMA,
            id: self.id.clone(),
            repo_tags: self.repo_tags.clone(),
            repo_digests: self.repo_digests.clone(),
            manifests: self.manifests.clone(),
            size: self.size,
            pinned: self.pinned,
            config: self.config_json.clone(),
        };
        // Strings and numbers only: this cannot fail, and an empty file would be set aside.
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
        let mut record = Self::new(on_disk.config, on_disk.size)?;
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

/// Adds what is missing; the result is sorted, so that equal sets are equal messages.
fn merge<T: Ord + Clone>(into: &mut Vec<T>, from: &[T]) {
    into.extend(from.iter().cloned());
    into.sort();
    into.dedup();
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn config(user: &str, diff_ids: &[Digest]) -> String {
        let ids: Vec<_> = diff_ids.iter().map(Digest::as_str).collect();
        serde_json::json!({
            "architecture": "amd64", "os": "linux",
            "config": {"User": user, "Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": ids},
        })
        .to_string()
    }

    fn user(text: &str) -> ImageUser {
        ImageRecord::new(config(text, &[]), 1).unwrap().user()
    }

    #[test]
    fn a_user_is_a_number_or_a_name_with_an_optional_group() {
        let name = |n: &str| Some(Named::Name(n.into()));
        assert_eq!(user(""), ImageUser::default());
        assert_eq!(user("1002").user, Some(Named::Id(1002)));
        assert_eq!(user("www-data").user, name("www-data"));
        let both = user("1003:1004");
        assert_eq!(
            (both.user, both.group),
            (Some(Named::Id(1003)), Some(Named::Id(1004)))
        );
        assert_eq!(user("www-data:www").group, name("www"));
        assert_eq!(user("5000000000").user, name("5000000000"));
    }

    #[test]
    fn a_record_comes_back_from_disk_as_it_was() {
        let layers = [Digest::of(b"1"), Digest::of(b"2")];
        let record = ImageRecord::new(config("", &layers), 7)
            .unwrap()
            .with_names(&Names {
                repo_tags: vec!["r.example/b:2".into(), "r.example/a:1".into()],
                ..Names::default()
            });
        let back = ImageRecord::from_json(&record.to_json()).unwrap();
        assert_eq!(back.repo_tags, ["r.example/a:1", "r.example/b:2"]);
        assert_eq!(
            (&back.id, &back.layers, back.size),
            (&record.id, &record.layers, 7)
        );
        assert_eq!(back.layers[1], Digest::chain(Some(&layers[0]), &layers[1]));
    }

    #[test]
    fn a_config_as_docker_writes_it_with_nulls_and_extras_is_read() {
        let layer = Digest::of(b"1");
        let json = serde_json::json!({
            "architecture": "arm", "variant": "v7", "os": "linux", "os.version": "",
            "created": "2024-01-01T00:00:00.123456789Z", "docker_version": "20.10", "container": "x",
            "author": "", "container_config": {"Cmd": ["x"]},
            "config": {
                "Hostname": "", "User": "", "AttachStdin": false, "Tty": false, "Env": null,
                "Cmd": null, "Entrypoint": null, "Image": "sha256:x", "Volumes": null,
                "ExposedPorts": null, "WorkingDir": "", "OnBuild": null, "Labels": null,
                "ArgsEscaped": true, "Healthcheck": {"Test": ["CMD"]}, "Shell": null,
                "StopSignal": "SIGQUIT", "MacAddress": ""
            },
            "history": [{"created": "2024-01-01T00:00:00Z", "empty_layer": true}, {}],
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        });
        let record = ImageRecord::new(json.to_string(), 1).unwrap();
        assert_eq!(
            record
                .config
                .config()
                .as_ref()
                .unwrap()
                .stop_signal()
                .as_deref(),
            Some("SIGQUIT")
        );
        let full = json
            .to_string()
            .replace("\"Volumes\":null", "\"Volumes\":{\"/data\":{}}");
        let record = ImageRecord::new(
            full.replace("\"ExposedPorts\":null", "\"ExposedPorts\":{\"80/tcp\":{}}"),
            1,
        )
        .unwrap();
        let config = record.config.config().as_ref().unwrap();
        assert_eq!(config.volumes().as_ref().unwrap(), &["/data"]);
        for odd in ["\"history\":null", "\"config\":null"] {
            let (key, _) = odd.split_once(':').unwrap();
            let mut value = json.clone();
            value[key.trim_matches('"')] = serde_json::Value::Null;
            assert!(ImageRecord::new(value.to_string(), 1).is_ok(), "{odd}");
        }
    }

    #[test]
    fn a_damaged_or_foreign_record_is_refused() {
        let good = ImageRecord::new(config("", &[]), 7).unwrap().to_json();
        let good = String::from_utf8(good).unwrap();
        for bad in [
            String::new(),
            good.replace("\"schema\": 1", "\"schema\": 9"),
            good.replace("amd64", "arm64"),
            good[..good.len() / 2].to_owned(),
        ] {
            assert!(ImageRecord::from_json(bad.as_bytes()).is_err());
        }
    }
}
