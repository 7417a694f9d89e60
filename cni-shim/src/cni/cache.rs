//! The result cache, in the location and form of other runtimes and some plugins (CRI-530): `<cache
//! dir>/results/<network>-<container id>-<interface>`, `cniCacheV1`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{file, record::read_regular};

pub(super) const KIND: &str = "cniCacheV1";
const ENTRY_MAX: u64 = 8 << 20;
/// Limit of searched files.
const FILES_MAX: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    pub(crate) kind: String,
    pub(crate) container_id: String,
    /// The configuration list, in base64.
    pub(crate) config: String,
    pub(crate) if_name: String,
    pub(crate) network_name: String,
    #[serde(default)]
    pub(crate) netns: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cni_args: Option<Vec<(String, String)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) capability_args: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    pub(crate) result: Value,
}

impl Entry {
    pub(crate) fn config(&self) -> Result<Value, String> {
        let text = STANDARD.decode(&self.config).map_err(|e| e.to_string())?;
        serde_json::from_slice(&text).map_err(|e| e.to_string())
    }

    pub(crate) fn encode_config(list: &Value) -> String {
        STANDARD.encode(list.to_string())
    }

    fn file_name(&self) -> String {
        file_name(&self.network_name, &self.container_id, &self.if_name)
    }
}

#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
}

impl Cache {
    pub(crate) fn new(cache_dir: &Path) -> Self {
        Self {
            dir: cache_dir.join("results"),
        }
    }

    pub(crate) fn write(&self, entry: &Entry) -> io::Result<()> {
        if !self.dir.is_dir() {
            file::make_private(&self.dir)?;
            fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o700))?;
        }
        let path = self.path(&entry.network_name, &entry.container_id, &entry.if_name);
        file::replace(&path, &serde_json::to_vec(entry)?, 0o600)
    }

    /// Moves an earlier version's entries here. Existing ones are not overwritten.
    pub(crate) fn take_over(&self, earlier: &Path) -> io::Result<()> {
        let earlier = earlier.join("results");
        let files = match fs::read_dir(&earlier) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        if fs::canonicalize(&self.dir).is_ok_and(|own| Some(own) == fs::canonicalize(&earlier).ok())
        {
            return Ok(());
        }
        for path in files
            .take(FILES_MAX)
            .filter_map(|file| Some(file.ok()?.path()))
        {
            let Some(entry) = read(&path) else { continue };
            if !self.dir.join(entry.file_name()).exists() {
                self.write(&entry)?;
            }
            fs::remove_file(&path)?;
        }
        Ok(())
    }

    /// `None` also if it is unreadable: a DEL without a previous result is better than none.
    pub(crate) fn read(&self, network: &str, container: &str, interface: &str) -> Option<Entry> {
        read(&self.path(network, container, interface))
    }

    pub(crate) fn remove(&self, network: &str, container: &str, interface: &str) -> io::Result<()> {
        file::remove(&self.path(network, container, interface))
    }

    /// Attachments of any runtime that are `wanted`; `named` preselects by file name.
    pub(crate) fn find(
        &self,
        named: impl Fn(&str) -> bool,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Vec<Entry> {
        let Ok(files) = fs::read_dir(&self.dir) else {
            return Vec::new();
        };
        let files = files.take(FILES_MAX).filter_map(Result::ok);
        let files = files.filter(|file| file.file_name().to_str().is_some_and(&named));
        files
            .filter_map(|file| read(&file.path()))
            .filter(wanted)
            .collect()
    }

    fn path(&self, network: &str, container: &str, interface: &str) -> PathBuf {
        self.dir.join(file_name(network, container, interface))
    }
}

fn file_name(network: &str, container: &str, interface: &str) -> String {
    format!("{network}-{container}-{interface}")
}

/// Ignores an entry under another file name: its fields become paths and environment variables.
fn read(path: &Path) -> Option<Entry> {
    let data = read_regular(path, ENTRY_MAX).ok()?;
    let entry: Entry = serde_json::from_slice(&data).ok()?;
    let named = path.file_name().and_then(|name| name.to_str()) == Some(&entry.file_name());
    (entry.kind == KIND && named).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry() -> Entry {
        Entry {
            kind: KIND.to_owned(),
            container_id: "c1".into(),
            config: Entry::encode_config(&json!({"name": "net"})),
            if_name: "eth0".into(),
            network_name: "net".into(),
            netns: "/run/netns/x".into(),
            cni_args: Some(vec![("K".into(), "v".into())]),
            capability_args: None,
            result: json!({"cniVersion": "1.0.0"}),
        }
    }

    #[test]
    fn an_entry_is_private_and_found_under_the_common_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = Cache::new(dir.path());
        cache.write(&entry()).expect("writes");
        let file = dir.path().join("results/net-c1-eth0");
        assert_eq!(
            fs::metadata(&file).expect("exists").permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(cache.read("net", "c1", "eth0"), Some(entry()));
        assert_eq!(entry().config(), Ok(json!({"name": "net"})));
        cache.remove("net", "c1", "eth0").expect("removes");
        cache.remove("net", "c1", "eth0").expect("removes it twice");
        assert_eq!(cache.read("net", "c1", "eth0"), None);
    }

    #[test]
    fn a_crashs_leftover_is_removed_with_its_entry() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = Cache::new(dir.path());
        cache.write(&entry()).expect("writes");
        fs::write(dir.path().join("results/net-c1-eth0.tmp"), "{").expect("writes");
        cache.remove("net", "c1", "eth0").expect("removes");
        let left = fs::read_dir(dir.path().join("results")).expect("a directory");
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn entries_of_an_earlier_version_are_taken_over_and_overwrite_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let other = Entry {
            container_id: "c2".into(),
            ..entry()
        };
        for one in [&entry(), &other] {
            Cache::new(&old).write(one).expect("writes");
        }
        let newer = Entry {
            netns: "/run/netns/y".into(),
            ..entry()
        };
        let cache = Cache::new(&new);
        cache.write(&newer).expect("writes");
        cache.take_over(&old).expect("takes over");
        cache.take_over(&old).expect("takes over twice");
        cache.take_over(&new).expect("is the same directory");
        cache
            .take_over(&dir.path().join("none"))
            .expect("nothing to take");
        assert_eq!(cache.read("net", "c1", "eth0"), Some(newer));
        assert_eq!(cache.read("net", "c2", "eth0"), Some(other));
        assert_eq!(Cache::new(&old).find(|_| true, |_| true), []);
    }

    #[test]
    fn foreign_and_broken_files_are_skipped() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = Cache::new(dir.path());
        cache.write(&entry()).expect("writes");
        fs::write(dir.path().join("results/net-c2-eth0"), "{").expect("writes");
        fs::write(dir.path().join("results/other"), r#"{"kind":"else"}"#).expect("writes");
        let mut forged = entry();
        forged.if_name = "../../../etc/passwd".into();
        let forged = serde_json::to_vec(&forged).expect("json");
        fs::write(dir.path().join("results/net-c3-eth0"), forged).expect("writes");
        let full = serde_json::to_vec(&entry()).expect("json");
        for length in 0..full.len() {
            fs::write(dir.path().join("results/net-c4-eth0"), &full[..length]).expect("writes");
            assert_eq!(cache.read("net", "c4", "eth0"), None);
        }
        let pipe = dir.path().join("results/net-c5-eth0");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).expect("makes a pipe");
        assert_eq!(cache.find(|_| true, |_| true), [entry()]);
    }
}
