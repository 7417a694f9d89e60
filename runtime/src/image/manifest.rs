//! Manifests and indexes of OCI and Docker (CRI-401 to CRI-403): lenient parsing, strict choice.
//! Pure.

use serde::Deserialize;

use super::digest::Digest;
use super::error::Error;
use super::store::record::LAYERS_MAX;

/// The longest manifest or index, in bytes.
pub(super) const MANIFEST_MAX: u64 = 4 << 20;
/// The longest image config, in bytes.
pub(super) const CONFIG_MAX: u64 = 4 << 20;
const INDEX_ENTRIES_MAX: usize = 1000;
/// The longest media type that is kept, in characters.
const NAME_MAX: usize = 200;

/// Accepted media types, best first.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// A blob in a manifest. Blobs of a `docker save` archive have no digest and size.
#[derive(Debug, Clone)]
pub(super) struct Descriptor {
    pub digest: Option<Digest>,
    pub size: Option<u64>,
    /// Media type, or the file's name in an archive; the name of the blob in errors.
    pub name: String,
}

impl Descriptor {
    pub(super) fn fault(&self, why: impl Into<String>) -> Error {
        let digest = self.digest.as_ref();
        Error::Blob {
            blob: digest.map_or(self.name.as_str(), Digest::as_str).to_owned(),
            why: why.into(),
        }
    }
}

pub(super) fn fault(what: &str, why: impl Into<String>) -> Error {
    Error::Manifest {
        manifest: what.to_owned(),
        why: why.into(),
    }
}

/// The document that a name refers to: an index or a manifest.
#[derive(Debug)]
pub(super) enum Document {
    Image(ImageManifest),
    /// Manifests to choose from.
    Index(Vec<IndexEntry>),
}

#[derive(Debug)]
pub(super) struct ImageManifest {
    pub config: Descriptor,
    /// Lowest first.
    pub layers: Vec<Descriptor>,
}

#[derive(Debug, Clone)]
pub(super) struct IndexEntry {
    pub digest: Digest,
    pub size: u64,
    pub platform: Option<Platform>,
    /// An entry of an artifact or attestation, not of an image.
    pub artifact: bool,
    /// The name given by annotations (CRI-456).
    pub name: Option<String>,
}

#[derive(Debug, Clone, Deserialize, Default, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Platform {
    pub os: String,
    pub architecture: String,
    pub variant: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    size: u64,
    platform: Option<Platform>,
    artifact_type: Option<String>,
    annotations: Option<Annotations>,
}

/// The annotations that are read.
#[derive(Deserialize, Default)]
struct Annotations {
    #[serde(rename = "vnd.docker.reference.type")]
    reference_type: Option<String>,
    #[serde(rename = "io.containerd.image.name")]
    image_name: Option<String>,
    #[serde(rename = "org.opencontainers.image.ref.name")]
    ref_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: u32,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
    manifests: Option<Vec<RawDescriptor>>,
    artifact_type: Option<String>,
}

impl From<RawDescriptor> for Descriptor {
    fn from(raw: RawDescriptor) -> Self {
        Self {
            digest: Some(raw.digest),
            size: Some(raw.size),
            name: raw.media_type.chars().take(NAME_MAX).collect(),
        }
    }
}

/// Parses a manifest or an index; `what` names it in an error.
pub(super) fn parse(what: &str, bytes: &[u8]) -> Result<Document, Error> {
    let fault = |why: String| fault(what, why);
    let raw: Raw = serde_json::from_slice(bytes).map_err(|e| fault(e.to_string()))?;
    if raw.schema_version != 2 {
        let schema = raw.schema_version;
        return Err(fault(format!("unsupported schema {schema} (supported: 2)")));
    }
    if let Some(manifests) = raw.manifests {
        if manifests.len() > INDEX_ENTRIES_MAX {
            return Err(fault(format!("lists {} manifests", manifests.len())));
        }
        let entries = manifests.into_iter().map(index_entry);
        return Ok(Document::Index(entries.collect()));
    }
    let (Some(config), Some(layers)) = (raw.config, raw.layers) else {
        return Err(fault("has neither manifests nor config and layers".into()));
    };
    let kind = config.media_type.as_str();
    let is_image = kind.is_empty()
        || kind.starts_with("application/vnd.oci.image.config.")
        || kind == "application/vnd.docker.container.image.v1+json";
    let other = raw.artifact_type.filter(|t| !t.is_empty() && t != kind);
    if !is_image || other.is_some() {
        return Err(fault(format!("is an artifact ({kind}), not an image")));
    }
    if config.size > CONFIG_MAX {
        return Err(fault(format!("a config of {} bytes", config.size)));
    }
    if layers.len() > LAYERS_MAX {
        return Err(fault(format!("lists {} layers", layers.len())));
    }
    if let Some(layer) = layers.iter().find(|l| l.media_type.ends_with("+encrypted")) {
        let layer = &layer.digest;
        let why = format!("layer {layer} is encrypted, which is not supported");
        return Err(fault(why));
    }
    Ok(Document::Image(ImageManifest {
        config: config.into(),
        layers: layers.into_iter().map(Descriptor::from).collect(),
    }))
}

fn index_entry(raw: RawDescriptor) -> IndexEntry {
    let annotations = raw.annotations.unwrap_or_default();
    let kind = annotations.reference_type.as_deref();
    let attestation = kind == Some("attestation-manifest");
    IndexEntry {
        digest: raw.digest,
        size: raw.size,
        artifact: attestation || raw.artifact_type.is_some(),
        platform: raw.platform,
        name: annotations.image_name.or(annotations.ref_name),
    }
}

/// The entry for this host (CRI-402): the exact variant first, then lower ones that it can run.
pub(super) fn choose<'a>(what: &str, entries: &'a [IndexEntry]) -> Result<&'a IndexEntry, Error> {
    choose_for(what, entries, &host_platform())
}

fn choose_for<'a>(
    what: &str,
    entries: &'a [IndexEntry],
    host: &Platform,
) -> Result<&'a IndexEntry, Error> {
    let images = || entries.iter().filter(|e| !e.artifact);
    let known = images().filter_map(|e| Some((rank(e.platform.as_ref()?, host)?, e)));
    if let Some((_, best)) = known.min_by_key(|(rank, _)| *rank) {
        return Ok(best);
    }
    // An index of one image without a platform, as in layouts of single images.
    let mut unmarked = images().filter(|e| e.platform.is_none());
    if let (Some(only), None) = (unmarked.next(), unmarked.next()) {
        return Ok(only);
    }
    let offered: Vec<_> = entries
        .iter()
        .filter_map(|e| e.platform.as_ref())
        .take(20)
        .map(|p| format!("{}/{}{}", p.os, p.architecture, p.variant))
        .collect();
    let (os, architecture) = (&host.os, &host.architecture);
    let offered = offered.join(", ");
    let why = format!("no image for {os}/{architecture} (available: {offered})");
    Err(fault(what, why))
}

/// Ranks an entry by its fit: 0 is best, `None` means that it does not fit.
fn rank(offered: &Platform, host: &Platform) -> Option<usize> {
    if offered.os != host.os || offered.architecture != host.architecture {
        return None;
    }
    let usable: &[&str] = match (host.architecture.as_str(), host.variant.as_str()) {
        ("arm", "v7") => &["v7", "v6", "v5", ""],
        ("arm", _) => &["v6", "v5", ""],
        ("arm64", _) => &["v8", ""],
        ("amd64", "v4") => &["v4", "v3", "v2", "v1", ""],
        ("amd64", "v3") => &["v3", "v2", "v1", ""],
        ("amd64", "v2") => &["v2", "v1", ""],
        ("amd64", _) => &["v1", ""],
        _ => &[""],
    };
    usable
        .iter()
        .position(|variant| *variant == offered.variant)
}

/// This machine's platform in the terms of an index.
fn host_platform() -> Platform {
    let (architecture, variant) = match std::env::consts::ARCH {
        "x86_64" => ("amd64", x86_level()),
        "x86" => ("386", ""),
        "aarch64" => ("arm64", "v8"),
        "arm" => ("arm", "v7"),
        "powerpc64" if cfg!(target_endian = "little") => ("ppc64le", ""),
        "riscv64" => ("riscv64", ""),
        other => (other, ""),
    };
    Platform {
        os: "linux".into(),
        architecture: architecture.into(),
        variant: variant.into(),
    }
}

#[cfg(target_arch = "x86_64")]
fn x86_level() -> &'static str {
    let v2 = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("popcnt");
    let v3 = v2
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("movbe");
    let v4 = v3
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512cd");
    match (v2, v3, v4) {
        (_, _, true) => "v4",
        (_, true, _) => "v3",
        (true, ..) => "v2",
        _ => "v1",
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn x86_level() -> &'static str {
    ""
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
