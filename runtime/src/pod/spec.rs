//! A container's specs on disk, beside its record: the spec from CRI, the adjusted spec, and the
//! owners of fields. Written at creation and at each update of resources.

use std::{fs, io, path::PathBuf};

use cairn_monitor::own_file;
use nri::owners::{ContainerOwners, Owners};
use oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};

use super::error::{AtStep as _, Error, Result};
use crate::{
    blocking::blocking,
    store::{self, Unsynced},
};

const SCHEMA: u32 = 1;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Specs {
    schema: u32,
    /// As built from CRI, before plugins; absent if no plugin changed it.
    pub base: Option<Spec>,
    /// The merged adjustment of all plugins.
    pub adjustment: proto_nri::ContainerAdjustment,
    /// Which plugin set which field.
    pub owners: proto_nri::OwningPlugins,
    /// The spec that the container is made from; its resources are kept up to date.
    pub spec: Spec,
}

impl Specs {
    pub fn new(spec: Spec) -> Self {
        Self {
            schema: SCHEMA,
            base: None,
            adjustment: proto_nri::ContainerAdjustment::default(),
            owners: proto_nri::OwningPlugins::default(),
            spec,
        }
    }

    /// Which plugin set which field of the container `id`.
    pub fn owners_of(&self, id: &str) -> ContainerOwners {
        let owners = Owners::try_from(&self.owners).unwrap_or_default();
        owners.container(id).cloned().unwrap_or_default()
    }
}

/// `<root>/specs/<container id>.json`.
#[derive(Debug, Clone)]
pub struct SpecStore {
    dir: PathBuf,
    unsynced: Unsynced,
}

impl SpecStore {
    /// Opens the store and removes half-written files of a crash. Call it before any write.
    ///
    /// # Errors
    /// When the directory cannot be made or read.
    pub fn open(dir: PathBuf, unsynced: Unsynced) -> Result<Self, store::Error> {
        store::make_dir(&dir)?;
        store::discard_unfinished(&dir)?;
        Ok(Self { dir, unsynced })
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// # Errors
    /// The file is missing, unreadable, or of a newer schema.
    pub async fn read(&self, id: &str) -> Result<Specs> {
        let (specs, id) = (self.clone(), id.to_owned());
        blocking(move || specs.read_blocking(&id)).await
    }

    /// [`Self::read`] for recovery, which may block.
    ///
    /// # Errors
    /// As [`Self::read`].
    #[expect(clippy::disallowed_methods, reason = "called by blocking()")]
    pub fn read_blocking(&self, id: &str) -> Result<Specs> {
        let what = format!("container {id}: read its spec");
        let bytes = own_file::read(self.path(id)).step(&what)?;
        let specs: Specs = serde_json::from_slice(&bytes).step(&what)?;
        match specs.schema {
            SCHEMA => Ok(specs),
            newer => Err(Error::failed(format!("{what}: schema {newer} is not ours"))),
        }
    }

    /// Replaces the file atomically; it is on disk after the next [`Unsynced::sync`].
    ///
    /// # Errors
    /// When the file system refuses; the old file stays.
    pub async fn write(&self, id: &str, specs: &Specs) -> Result<()> {
        let (path, unsynced) = (self.path(id), self.unsynced.clone());
        let bytes = serde_json::to_vec(specs).step(&format!("container {id}: encode its spec"))?;
        let length = own_file::check_length(bytes.len() as u64);
        length.step(&format!("container {id}: write its spec"))?;
        blocking(move || {
            crate::fault::point("store.spec")?;
            unsynced.replace(&path, &bytes)
        })
        .await?;
        Ok(())
    }

    /// Idempotent.
    ///
    /// # Errors
    /// When the file system refuses.
    #[expect(clippy::disallowed_methods, reason = "in blocking()")]
    pub async fn remove(&self, id: &str) -> Result<()> {
        let path = self.path(id);
        match blocking(move || fs::remove_file(path)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).step(&format!("container {id}: remove its spec"))
            }
            _ => Ok(()),
        }
    }

    /// Ids of all specs, for the sweep after a crash.
    ///
    /// # Errors
    /// When the directory cannot be read.
    #[expect(clippy::disallowed_methods, reason = "in blocking()")]
    pub async fn ids(&self) -> io::Result<Vec<String>> {
        let dir = self.dir.clone();
        blocking(move || {
            let names = fs::read_dir(dir)?;
            let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let ids = names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned));
            Ok(ids.collect())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_write_that_was_cut_off_is_gone_at_the_next_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let specs = dir.path().join("specs");
        SpecStore::open(specs.clone(), Unsynced::default()).expect("a first start");
        for name in ["whole.json", "cut.tmp"] {
            fs::write(specs.join(name), b"{").expect("write");
        }
        let again = SpecStore::open(specs.clone(), Unsynced::default()).expect("another start");
        assert_eq!(again.ids().await.expect("ids"), ["whole"]);
        assert!(!specs.join("cut.tmp").exists());
    }
}
