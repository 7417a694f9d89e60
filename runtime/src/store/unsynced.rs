//! Records that were written, and when they are on disk.
//!
//! [`Unsynced::replace`] is atomic for whoever comes after our death, and waits for no disk. What
//! must also outlive a loss of power waits for [`Unsynced::sync`], once at the end of an RPC (CRI-811), and those who wait at the
//! same time share one journal commit.

use std::{
    collections::BTreeSet,
    fs, io, mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::error::Error;
use crate::blocking::blocking;
use crate::replace;

/// What was written and may not be on disk yet. Clones are handles to the same.
#[derive(Debug, Clone, Default)]
pub struct Unsynced(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Replaced or removed files.
    paths: Mutex<BTreeSet<PathBuf>>,
    /// Held by who syncs. The next one takes all that has come in meanwhile, and those behind it find nothing left to do.
    turn: Arc<AsyncMutex<()>>,
}

impl Unsynced {
    /// Writes a file so that whoever reads it, also after a crash of ours, finds the old or the new content, whole.
    ///
    /// # Errors
    /// When any step fails; the old content is then still there.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        replace::file(path, bytes).map_err(Error::io("write", path))?;
        self.0.paths.lock().insert(path.to_owned());
        Ok(())
    }

    /// Removes a file; one that is gone already is fine.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn remove(&self, path: &Path) -> Result<(), Error> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", path)(error));
            }
            _ => {}
        }
        self.0.paths.lock().insert(path.to_owned());
        Ok(())
    }

    /// Waits until all that was replaced or removed before is on disk. May be dropped: it ends by itself.
    ///
    /// # Errors
    /// The first of the disk's. What was not synced is tried again by the next one.
    pub async fn sync(&self) -> Result<(), Error> {
        let turn = Arc::clone(&self.0.turn).lock_owned().await;
        if self.0.paths.lock().is_empty() {
            return Ok(());
        }
        let this = self.clone();
        blocking(move || {
            let _turn = turn;
            let paths = mem::take(&mut *this.0.paths.lock());
            sync_all(&paths).inspect_err(|_| this.0.paths.lock().extend(paths))
        })
        .await
    }
}

/// The files first: to most file systems, their journal with it, the rest is then nothing new.
fn sync_all(paths: &BTreeSet<PathBuf>) -> Result<(), Error> {
    for path in paths {
        match replace::sync(path) {
            // Removed since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(Error::io("sync", path))?,
        }
    }
    let dirs: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
    for dir in dirs {
        replace::sync(dir).map_err(Error::io("sync", dir))?;
    }
    Ok(())
}

/// Removes what [`Unsynced::replace`] left in a directory when it was cut off: writes that never became a file. For a
/// start, before anything is written there.
///
/// # Errors
/// When the file system refuses.
pub fn discard_unfinished(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let path = entry.map_err(Error::io("read", dir))?.path();
        if path
            .extension()
            .is_some_and(|kind| kind == replace::UNFINISHED)
        {
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_could_not_be_synced_is_tried_again_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (below, gone) = (dir.path().join("below"), dir.path().join("gone"));
        fs::create_dir(&below).unwrap();
        let unsynced = Unsynced::default();
        unsynced.replace(&below.join("a"), b"a").unwrap();
        fs::rename(&below, &gone).unwrap();
        let error = unsynced.sync().await.unwrap_err().to_string();
        assert!(error.starts_with("sync "), "{error}");
        assert!(unsynced.sync().await.is_err(), "it still waits");
        fs::rename(&gone, &below).unwrap();
        unsynced.sync().await.unwrap();
        assert!(unsynced.0.paths.lock().is_empty());
    }

    #[tokio::test]
    async fn who_waits_behind_another_finds_its_own_files_synced() {
        let dir = tempfile::tempdir().unwrap();
        let unsynced = Unsynced::default();
        let waiting = (0..16).map(|n| {
            let (unsynced, path) = (unsynced.clone(), dir.path().join(n.to_string()));
            async move {
                unsynced.replace(&path, b"x").unwrap();
                unsynced.sync().await.unwrap();
                assert!(!unsynced.0.paths.lock().contains(&path));
            }
        });
        let mut all = tokio::task::JoinSet::new();
        waiting.for_each(|one| drop(all.spawn(one)));
        all.join_all().await;
    }

    #[tokio::test]
    async fn a_removed_file_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let unsynced = Unsynced::default();
        let path = dir.path().join("a");
        unsynced.replace(&path, b"a").unwrap();
        unsynced.remove(&path).unwrap();
        unsynced.remove(&path).unwrap();
        unsynced.sync().await.unwrap();
    }
}
