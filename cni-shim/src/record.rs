//! What is on disk of an attached sandbox: one JSON file each, `<state>/attachments/<sandbox id>.json`.
//!
//! A record is written **before** the first effect (CRI-810) and removed after the last undo, and it alone says which
//! addresses and host ports are in use. It is replaced atomically and not synced: what it describes (links, network
//! namespaces) does not outlive the kernel either; and the network plugins' own state is found again through the
//! result cache.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::addr::Cidr;
use crate::types::{NetworkError, PortMapping};

const SCHEMA: u32 = 1;
const RECORD_MAX: u64 = 4 << 20;

/// One sandbox's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    schema: u32,
    pub sandbox_id: String,
    pub netns: PathBuf,
    pub backend: Backend,
}

/// What undoes the attachment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    Bridge(OnBridge),
    Cni(OnCni),
}

/// Held on the built-in bridge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OnBridge {
    /// The host's end of the veth pair.
    pub veth: String,
    pub addresses: Vec<Cidr>,
    pub ports: Vec<PortMapping>,
}

/// Held by CNI plugins: everything a DEL needs, whatever the configuration directory holds by then (CRI-502).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OnCni {
    pub network: String,
    pub interface: String,
    /// The configuration list as it was used.
    pub config: serde_json::Value,
    pub args: Vec<(String, String)>,
    pub capability_args: BTreeMap<String, serde_json::Value>,
}

impl Record {
    pub fn new(sandbox_id: &str, netns: &Path, backend: Backend) -> Self {
        Self {
            schema: SCHEMA,
            sandbox_id: sandbox_id.into(),
            netns: netns.into(),
            backend,
        }
    }
}

/// The directory of records.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
}

impl Records {
    /// Opens the directory, making it when missing.
    pub fn open(state_dir: &Path) -> Result<Self, NetworkError> {
        let dir = state_dir.join("attachments");
        fs::create_dir_all(&dir).map_err(NetworkError::io(format!("create {}", dir.display())))?;
        Ok(Self { dir })
    }

    /// Every readable record. An unreadable one is renamed to `<name>.unreadable` and logged; a half-written
    /// temporary file is removed.
    pub fn load(&self) -> Result<BTreeMap<String, Record>, NetworkError> {
        let step = || NetworkError::io(format!("list {}", self.dir.display()));
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(&self.dir).map_err(step())? {
            let path = entry.map_err(step())?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => match read(&path) {
                    Ok(record) => drop(records.insert(record.sandbox_id.clone(), record)),
                    Err(why) => set_aside(&path, &why),
                },
                Some("tmp") => drop(fs::remove_file(&path)),
                _ => {}
            }
        }
        Ok(records)
    }

    pub fn write(&self, record: &Record) -> Result<(), NetworkError> {
        let path = self.path(&record.sandbox_id);
        let text = serde_json::to_vec(record).map_err(io::Error::from);
        text.and_then(|text| replace(&path, &text, 0o600))
            .map_err(NetworkError::io(format!("write {}", path.display())))
    }

    /// Removes a record; one that is gone already counts as removed.
    pub fn remove(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        let path = self.path(sandbox_id);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(NetworkError::io(format!("remove {}", path.display()))(e))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, sandbox_id: &str) -> PathBuf {
        self.dir.join(format!("{sandbox_id}.json"))
    }
}

/// Replaces a file so that a reader sees the old or the new content, never a part.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)?;
    file.write_all(content)?;
    fs::rename(&temporary, path)
}

fn read(path: &Path) -> Result<Record, String> {
    let length = fs::metadata(path).map_err(|e| e.to_string())?.len();
    if length > RECORD_MAX {
        return Err(format!("{length} bytes are too long"));
    }
    let record: Record = serde_json::from_slice(&fs::read(path).map_err(|e| e.to_string())?)
        .map_err(|e| e.to_string())?;
    let named = path.file_stem().and_then(|stem| stem.to_str()) == Some(&record.sandbox_id);
    match record.schema {
        SCHEMA if named => Ok(record),
        SCHEMA => Err("the file is not named after its sandbox".into()),
        other => Err(format!("schema {other} is not known")),
    }
}

fn set_aside(path: &Path, why: &str) {
    let aside = path.with_extension("unreadable");
    let moved = fs::rename(path, &aside);
    tracing::warn!(record = %path.display(), why, moved = moved.is_ok(), "set an unreadable record aside");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str) -> Record {
        let addresses = vec!["10.0.0.2/24".parse().expect("an address")];
        let held = OnBridge {
            veth: "veth0".into(),
            addresses,
            ports: Vec::new(),
        };
        Record::new(id, Path::new("/run/x/net"), Backend::Bridge(held))
    }

    #[test]
    fn an_unreadable_record_is_set_aside_and_hides_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::open(dir.path()).expect("opens");
        records.write(&record("good")).expect("writes");
        let attachments = dir.path().join("attachments");
        fs::write(attachments.join("torn.json"), b"{\"schema\":1,").expect("writes");
        fs::write(
            attachments.join("other.json"),
            serde_json::to_vec(&record("name")).expect("json"),
        )
        .expect("writes");
        fs::write(attachments.join("left.json.tmp"), b"").expect("writes");

        let loaded = records.load().expect("loads");

        assert_eq!(loaded.into_values().collect::<Vec<_>>(), [record("good")]);
        assert!(attachments.join("torn.unreadable").exists());
        assert!(attachments.join("other.unreadable").exists());
        assert!(!attachments.join("left.json.tmp").exists());
    }

    #[test]
    fn removing_a_record_twice_is_no_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::open(dir.path()).expect("opens");
        records.write(&record("a")).expect("writes");
        records.remove("a").expect("removes");
        records.remove("a").expect("is gone already");
        assert!(records.load().expect("loads").is_empty());
    }
}
