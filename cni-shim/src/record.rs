//! Attachment records: one JSON file per attached sandbox, `<state>/attachments/<sandbox id>.json`.
//!
//! A record is written **before** the first effect (CRI-810) and removed after the last undo;
//! records alone determine which addresses and host ports are in use. A record is replaced
//! atomically, but not synced: a crash of the kernel also removes its links and network namespaces,
//! and the result cache has the state of network plugins.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::addr::Cidr;
use crate::bandwidth::Limits;
use crate::file::{self, ignore_missing};
use crate::types::PortMapping;

const SCHEMA: u32 = 1;
const RECORD_MAX: u64 = 4 << 20;

/// Listing, writing or removing a record failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {cause}")]
pub struct RecordError {
    pub step: String,
    pub cause: io::Error,
}

impl RecordError {
    fn at(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |cause| Self { step, cause }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    schema: u32,
    pub(crate) sandbox_id: String,
    pub(crate) netns: PathBuf,
    pub(crate) backend: Backend,
    /// Whether the network came up: an ADD of CNI succeeded. Records of older versions do not say.
    #[serde(default = "yes")]
    pub(crate) added: bool,
}

fn yes() -> bool {
    true
}

/// A sandbox's endpoint on a network: the data to undo its attachment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Backend {
    Bridge(OnBridge),
    Cni(OnCni),
}

/// An endpoint on the built-in bridge: a veth pair and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OnBridge {
    /// The host's end of the veth pair.
    pub(crate) veth: String,
    pub(crate) addresses: Vec<Cidr>,
    pub(crate) ports: Vec<PortMapping>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limits: Option<Limits>,
}

/// An endpoint that CNI plugins made: the complete input of a DEL, independent of the current
/// configuration directory (CRI-502).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OnCni {
    pub(crate) network: String,
    pub(crate) interface: String,
    /// The configuration list of the ADD.
    pub(crate) config: serde_json::Value,
    pub(crate) args: Vec<(String, String)>,
    pub(crate) capability_args: BTreeMap<String, serde_json::Value>,
}

impl OnBridge {
    pub(crate) fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|address| address.ip)
    }
}

impl OnCni {
    /// The host ports requested from its plugins.
    pub(crate) fn ports(&self) -> Vec<PortMapping> {
        let asked = self.capability_args.get("portMappings").cloned();
        asked
            .and_then(|ports| serde_json::from_value(ports).ok())
            .unwrap_or_default()
    }
}

impl Record {
    pub(crate) fn new(sandbox_id: &str, netns: &Path, backend: Backend) -> Self {
        Self {
            schema: SCHEMA,
            sandbox_id: sandbox_id.into(),
            netns: netns.into(),
            backend,
            added: false,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) records: BTreeMap<String, Record>,
    pub(crate) unreadable: BTreeMap<String, Unreadable>,
}

/// An existing record that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) reason: String,
    /// Texts in it that are addresses: they are not given to other pods.
    pub(crate) addresses: Vec<IpAddr>,
}

#[derive(Debug)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    /// Opens the directory; makes it if missing.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, RecordError> {
        let dir = state_dir.join("attachments");
        fs::create_dir_all(&dir).map_err(RecordError::at(format!("create {}", dir.display())))?;
        Ok(Self { dir })
    }

    /// Loads all records. Unreadable and newer ones stay in place; unfinished files are removed.
    pub(crate) fn load(&self) -> Result<Loaded, RecordError> {
        let step = || RecordError::at(format!("list {}", self.dir.display()));
        let mut records = BTreeMap::new();
        let mut unreadable = BTreeMap::new();
        for entry in fs::read_dir(&self.dir).map_err(step())? {
            let path = entry.map_err(step())?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => match read(&path) {
                    Ok(record) => drop(records.insert(record.sandbox_id.clone(), record)),
                    Err(reason) => {
                        let Some(id) = path.file_stem().and_then(|stem| stem.to_str()) else {
                            continue;
                        };
                        tracing::error!(record = %path.display(), reason, "cannot read an attachment record; it stays in place");
                        let addresses = addresses_in(&bytes(&path).unwrap_or_default());
                        unreadable.insert(id.to_owned(), Unreadable { reason, addresses });
                    }
                },
                Some("tmp") => drop(fs::remove_file(&path)),
                _ => {}
            }
        }
        Ok(Loaded {
            records,
            unreadable,
        })
    }

    pub(crate) fn write(&self, record: &Record) -> Result<(), RecordError> {
        let path = self.path(&record.sandbox_id);
        let text = serde_json::to_vec(record).map_err(io::Error::from);
        text.and_then(|text| file::replace(&path, &text, 0o600))
            .map_err(RecordError::at(format!("write {}", path.display())))
    }

    /// Removes a record; a missing one is fine.
    pub(crate) fn remove(&self, sandbox_id: &str) -> Result<(), RecordError> {
        let path = self.path(sandbox_id);
        ignore_missing(fs::remove_file(&path))
            .map_err(RecordError::at(format!("remove {}", path.display())))
    }

    pub(crate) fn path(&self, sandbox_id: &str) -> PathBuf {
        self.dir.join(format!("{sandbox_id}.json"))
    }
}

/// The content of a regular file of at most `RECORD_MAX` bytes; never waits.
fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    read_regular(path, RECORD_MAX).map_err(|e| e.to_string())
}

/// Reads a regular file of at most `most` bytes, without following a link or waiting for a fifo.
pub(crate) fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let how =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, how, Mode::empty())?);
    if !file.metadata()?.is_file() {
        let cause = "must be a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidData, cause));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let cause = format!("is longer than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, cause));
    }
    Ok(bytes)
}

fn read(path: &Path) -> Result<Record, String> {
    let record: Record = serde_json::from_slice(&bytes(path)?).map_err(|e| e.to_string())?;
    if let Backend::Bridge(endpoint) = &record.backend
        && endpoint.addresses.is_empty()
    {
        return Err("an attachment without an address".into());
    }
    let named = path.file_stem().and_then(|stem| stem.to_str()) == Some(&record.sandbox_id);
    match record.schema {
        SCHEMA if named => Ok(record),
        SCHEMA => Err("the file name does not match its sandbox id".into()),
        other => Err(format!("unsupported schema {other}")),
    }
}

/// Addresses in quotes, with or without a prefix length.
fn addresses_in(bytes: &[u8]) -> Vec<IpAddr> {
    let text = String::from_utf8_lossy(bytes);
    let words = text.split('"');
    words
        .filter_map(|word| word.split('/').next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str) -> Record {
        let addresses = vec!["10.0.0.2/24".parse().expect("an address")];
        let endpoint = OnBridge {
            veth: "veth0".into(),
            addresses,
            ports: Vec::new(),
            limits: None,
        };
        Record::new(id, Path::new("/run/x/net"), Backend::Bridge(endpoint))
    }

    #[test]
    fn an_unreadable_record_stays_keeps_its_address_and_hides_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::open(dir.path()).expect("opens");
        records.write(&record("good")).expect("writes");
        let attachments = dir.path().join("attachments");
        fs::write(
            attachments.join("torn.json"),
            b"{\"schema\":1,\"addresses\":[\"10.0.0.7/24\",\"fd00:",
        )
        .expect("writes");
        fs::write(
            attachments.join("other.json"),
            serde_json::to_vec(&record("name")).expect("json"),
        )
        .expect("writes");
        let mut empty = record("empty");
        if let Backend::Bridge(endpoint) = &mut empty.backend {
            endpoint.addresses.clear();
        }
        records.write(&empty).expect("writes");
        fs::write(attachments.join("left.json.tmp"), b"").expect("writes");

        let loaded = records.load().expect("loads");

        let readable: Vec<_> = loaded.records.into_values().collect();
        assert_eq!(readable, [record("good")]);
        let kept: Vec<_> = loaded.unreadable.keys().map(String::as_str).collect();
        assert_eq!(kept, ["empty", "other", "torn"]);
        let address: IpAddr = "10.0.0.7".parse().expect("an address");
        assert_eq!(loaded.unreadable["torn"].addresses, [address]);
        assert!(attachments.join("torn.json").exists());
        assert!(attachments.join("other.json").exists());
        assert!(!attachments.join("left.json.tmp").exists());
    }

    #[test]
    fn a_record_that_does_not_say_so_counts_as_added() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::open(dir.path()).expect("opens");
        records.write(&record("new")).expect("writes");
        let mut old = serde_json::to_value(record("old")).expect("json");
        old.as_object_mut().expect("an object").remove("added");
        fs::write(records.path("old"), old.to_string()).expect("writes");
        let loaded = records.load().expect("loads").records;
        assert_eq!((loaded["new"].added, loaded["old"].added), (false, true));
    }

    #[test]
    fn a_record_may_be_removed_twice() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::open(dir.path()).expect("opens");
        records.write(&record("a")).expect("writes");
        records.remove("a").expect("removes");
        records.remove("a").expect("is removed already");
        assert!(records.load().expect("loads").records.is_empty());
    }
}
