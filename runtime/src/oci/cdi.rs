//! CDI, the Container Device Interface (CRI-227): vendor files define what a device named
//! `vendor/class=name` adds to a container. This file parses names and files and resolves
//! precedence; `cdi_apply` applies the edits.

use std::collections::{BTreeMap, BTreeSet};

use proto_cri::v1::ContainerConfig;
use serde::Deserialize;

use super::error::SpecError;

/// Directories of CDI files; the later one wins (CRI-227).
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// A longer file, or one with more devices, is skipped with a warning.
pub const MAX_FILE: usize = 1024 * 1024;
const MAX_DEVICES: usize = 4096;

/// Annotations with this prefix list devices, separated by commas.
const ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// The text of a `.json`, `.yaml` or `.yml` file, read by the caller.
#[derive(Clone, Debug)]
pub struct CdiFile {
    /// Index of its directory in [`DIRECTORIES`]: the higher wins.
    pub priority: usize,
    pub path: String,
    pub text: String,
}

/// Edits of a device, or of all devices of a file.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Edits {
    pub env: Vec<String>,
    pub device_nodes: Vec<DeviceNode>,
    pub net_devices: Vec<NetDevice>,
    pub hooks: Vec<CdiHook>,
    pub mounts: Vec<CdiMount>,
    pub intel_rdt: Option<CdiRdt>,
    pub additional_gids: Vec<u32>,
}

/// A node; omitted values are those of the host's node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DeviceNode {
    pub path: String,
    pub host_path: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub major: i64,
    pub minor: i64,
    pub file_mode: Option<u32>,
    pub permissions: String,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// A host interface that moves into the container.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetDevice {
    pub host_interface_name: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CdiHook {
    pub hook_name: String,
    pub path: String,
    pub args: Vec<String>,
    pub env: Vec<String>,
    pub timeout: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CdiMount {
    pub host_path: String,
    pub container_path: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub options: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CdiRdt {
    #[serde(rename = "closID")]
    pub clos_id: String,
    pub l3_cache_schema: String,
    pub mem_bw_schema: String,
    pub schemata: Vec<String>,
    #[serde(rename = "enableCMT")]
    pub enable_cmt: bool,
    #[serde(rename = "enableMBM")]
    pub enable_mbm: bool,
    pub enable_monitoring: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    cdi_version: String,
    kind: String,
    #[serde(default)]
    #[expect(
        dead_code,
        reason = "a runtime ignores the annotations of a vendor's file"
    )]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    devices: Vec<Device>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Device {
    name: String,
    #[serde(default)]
    #[expect(dead_code, reason = "a runtime ignores the annotations of a device")]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    container_edits: Edits,
}

/// All available devices, by qualified name.
#[derive(Clone, Debug, Default)]
pub struct CdiRegistry {
    /// Edits of each file, applied once for all of its devices.
    common: Vec<Edits>,
    devices: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    priority: usize,
    file: usize,
    edits: Edits,
    /// Two files of one directory define it, so that it is unavailable.
    conflict: bool,
}

impl CdiRegistry {
    /// Reads the files. An invalid file, or a device that two files of one directory define, is
    /// left out with a warning: a vendor's mistake must not stop other pods.
    pub fn load(files: &[CdiFile]) -> (Self, Vec<String>) {
        let mut registry = Self::default();
        let mut warnings = Vec::new();
        for file in files {
            match parse(file) {
                Ok(document) => registry.add(file, document, &mut warnings),
                Err(cause) => warnings.push(format!("CDI file {}: {cause}", file.path)),
            }
        }
        (registry, warnings)
    }

    fn add(&mut self, file: &CdiFile, document: Document, warnings: &mut Vec<String>) {
        let index = self.common.len();
        self.common.push(document.container_edits);
        for device in document.devices {
            let name = format!("{}={}", document.kind, device.name);
            let entry = Entry {
                priority: file.priority,
                file: index,
                edits: device.container_edits,
                conflict: false,
            };
            match self.devices.get_mut(&name) {
                Some(other) if other.priority > file.priority => {}
                Some(other) if other.priority == file.priority => {
                    other.conflict = true;
                    warnings.push(format!(
                        "CDI file {}: {name} is defined twice in one directory",
                        file.path
                    ));
                }
                _ => {
                    self.devices.insert(name, entry);
                }
            }
        }
    }

    /// Names of all available devices.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.devices
            .iter()
            .filter(|(_, entry)| !entry.conflict)
            .map(|(name, _)| name.as_str())
    }

    /// The edits for these devices in order, those of a file before its first device. An error
    /// names every missing device.
    pub(crate) fn edits(&self, names: &[String]) -> Result<Vec<&Edits>, SpecError> {
        let mut edits = Vec::new();
        let mut files = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut missing = Vec::new();
        for name in names {
            if !seen.insert(name) {
                continue;
            }
            match self.devices.get(name).filter(|entry| !entry.conflict) {
                Some(entry) => {
                    if files.insert(entry.file) {
                        edits.push(&self.common[entry.file]);
                    }
                    edits.push(&entry.edits);
                }
                None => missing.push(name.as_str()),
            }
        }
        if missing.is_empty() {
            return Ok(edits);
        }
        Err(SpecError::not_found(
            "CDI_devices",
            format!("no such devices on this host: {}", missing.join(", ")),
        ))
    }
}

fn parse(file: &CdiFile) -> Result<Document, String> {
    if file.text.len() > MAX_FILE {
        return Err(format!("longer than {MAX_FILE} bytes"));
    }
    let document: Document = if file.path.ends_with(".json") {
        serde_json::from_str(&file.text).map_err(|e| e.to_string())?
    } else {
        let mut options = serde_saphyr::Options::default();
        // Vendors write octal file modes as 0666, as the Go tools accept them.
        options.legacy_octal_numbers = true;
        options.with_snippet = false;
        serde_saphyr::from_str_with_options(&file.text, options).map_err(|e| e.to_string())?
    };
    let major = document.cdi_version.split('.').next().unwrap_or_default();
    if !["0", "1"].contains(&major) {
        return Err(format!("unsupported version {:?}", document.cdi_version));
    }
    if !is_kind(&document.kind) {
        return Err(format!(
            "kind {:?} must be of the form vendor/class",
            document.kind
        ));
    }
    if document.devices.len() > MAX_DEVICES {
        return Err(format!("more than {MAX_DEVICES} devices"));
    }
    if let Some(device) = document.devices.iter().find(|d| !is_device(&d.name)) {
        return Err(format!("invalid device name {:?}", device.name));
    }
    Ok(document)
}

/// The devices that a container requests: its field, then its annotations, without duplicates.
pub fn cdi_names(config: &ContainerConfig) -> Result<Vec<String>, SpecError> {
    let listed = config
        .annotations
        .iter()
        .filter(|(key, _)| key.starts_with(ANNOTATION_PREFIX))
        .flat_map(|(_, value)| value.split(','))
        .map(str::trim);
    let mut names: Vec<String> = Vec::new();
    for name in config
        .cdi_devices
        .iter()
        .map(|d| d.name.as_str())
        .chain(listed)
    {
        if !is_qualified(name) {
            return Err(SpecError::invalid(
                "CDI_devices",
                format!("{name:?} is not of the form vendor/class=name"),
            ));
        }
        if !names.iter().any(|n| n == name) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn is_qualified(name: &str) -> bool {
    name.split_once('=')
        .is_some_and(|(kind, device)| is_kind(kind) && is_device(device))
}

fn is_kind(kind: &str) -> bool {
    let word = |text: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(inner)
    };
    kind.split_once('/')
        .is_some_and(|(vendor, class)| word(vendor) && word(class))
}

fn is_device(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || "_-.:".contains(c))
}
