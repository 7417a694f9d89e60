//! The result cache, in the place and form that other runtimes and some plugins use (CRI-530):
//! `<cache dir>/results/<network>-<container id>-<interface>`, `cniCacheV1`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file;

const KIND: &str = "cniCacheV1";
const ENTRY_MAX: u64 = 8 << 20;
/// More files than this are not searched.
const FILES_MAX: usize = 100_000;

/// One attachment, as cached.
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

    pub(crate) fn kind() -> String {
        KIND.to_owned()
    }
}

/// The directory of results.
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
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.dir)?;
            fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o700))?;
        }
        let path = self.path(&entry.network_name, &entry.container_id, &entry.if_name);
        file::replace(&path, &serde_json::to_vec(entry)?, 0o600)
    }

    /// What is cached; `None` also when it is unreadable, since a DEL without a previous result is better than none.
    pub(crate) fn read(&self, network: &str, container: &str, interface: &str) -> Option<Entry> {
        read(&self.path(network, container, interface))
    }

    pub(crate) fn remove(&self, network: &str, container: &str, interface: &str) -> io::Result<()> {
        file::remove(&self.path(network, container, interface))
    }

    /// Every attachment, of any runtime, that `wanted` is true for (given the file's name first, to read few).
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
        self.dir.join(format!("{network}-{container}-{interface}"))
    }
}

fn read(path: &Path) -> Option<Entry> {
    if fs::metadata(path).ok()?.len() > ENTRY_MAX {
        return None;
    }
    let entry: Entry = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (entry.kind == KIND).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry() -> Entry {
        Entry {
            kind: Entry::kind(),
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
        cache
            .remove("net", "c1", "eth0")
            .expect("again is no error");
        assert_eq!(cache.read("net", "c1", "eth0"), None);
    }

    #[test]
    fn what_a_crash_left_of_a_write_goes_with_its_entry() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = Cache::new(dir.path());
        cache.write(&entry()).expect("writes");
        fs::write(dir.path().join("results/net-c1-eth0.tmp"), "{").expect("writes");
        cache.remove("net", "c1", "eth0").expect("removes");
        let left = fs::read_dir(dir.path().join("results")).expect("a directory");
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn foreign_and_broken_files_are_passed_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = Cache::new(dir.path());
        cache.write(&entry()).expect("writes");
        fs::write(dir.path().join("results/net-c2-eth0"), "{").expect("writes");
        fs::write(dir.path().join("results/other"), r#"{"kind":"else"}"#).expect("writes");
        assert_eq!(cache.find(|_| true, |_| true), [entry()]);
    }
}
