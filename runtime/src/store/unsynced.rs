//! Tracks written records until they are on disk.
//!
//! [`Unsynced::replace`] is atomic over a crash of the daemon, and waits for no disk. Records that
//! must survive a power loss wait for [`Unsynced::sync`], once at the end of an RPC (CRI-811);
//! concurrent waits share one journal commit.

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
use crate::{replace, seeded};

/// Written files that may not be on disk yet. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Unsynced(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    paths: Mutex<BTreeSet<PathBuf>>,
    /// Locked by a syncing task. The next task syncs everything since then, so that later ones have
    /// no work.
    turn: Arc<AsyncMutex<()>>,
}

impl Unsynced {
    /// Replaces a file atomically: readers find the old or the new content, also after a crash.
    ///
    /// # Errors
    /// Any step failed; the old content is still there.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        seeded::before_change(path);
        replace::file(path, bytes).map_err(Error::io("write", path))?;
        self.0.paths.lock().insert(path.to_owned());
        Ok(())
    }

    /// Removes a file; a missing one is fine.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove(&self, path: &Path) -> Result<(), Error> {
        seeded::before_change(path);
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", path)(error));
            }
            _ => {}
        }
        self.0.paths.lock().insert(path.to_owned());
        Ok(())
    }

    /// Waits until all earlier changes are on disk. The sync continues if the future is dropped.
    ///
    /// # Errors
    /// The first error of the disk. The next sync retries unsynced files.
    pub async fn sync(&self) -> Result<(), Error> {
        let turn = Arc::clone(&self.0.turn).lock_owned().await;
        if self.0.paths.lock().is_empty() {
            return Ok(());
        }
        let this = self.clone();
        blocking(move || {
            let _turn = turn;
            let paths = mem::take(&mut *this.0.paths.lock());
            match sync_all(&paths) {
                Ok(()) => {
                    seeded::on_disk(&paths);
                    Ok(())
                }
                Err(error) => {
                    this.0.paths.lock().extend(paths);
                    Err(error)
                }
            }
        })
        .await
    }
}

/// Files first: most file systems then have the directories in the same journal commit.
fn sync_all(paths: &BTreeSet<PathBuf>) -> Result<(), Error> {
    for path in paths {
        match replace::sync(path) {
            // Removed meanwhile.
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

/// Removes unfinished files of interrupted [`Unsynced::replace`] calls. Only before any write.
///
/// # Errors
/// The file system's.
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
    async fn a_failed_sync_is_retried_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (below, moved) = (dir.path().join("below"), dir.path().join("moved"));
        fs::create_dir(&below).unwrap();
        let unsynced = Unsynced::default();
        unsynced.replace(&below.join("a"), b"a").unwrap();
        fs::rename(&below, &moved).unwrap();
        let error = unsynced.sync().await.unwrap_err().to_string();
        assert!(error.starts_with("sync "), "{error}");
        assert!(unsynced.sync().await.is_err(), "it still waits");
        fs::rename(&moved, &below).unwrap();
        unsynced.sync().await.unwrap();
        assert!(unsynced.0.paths.lock().is_empty());
    }

    #[tokio::test]
    async fn concurrent_syncs_find_their_files_synced() {
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
    async fn a_file_may_be_removed_twice() {
        let dir = tempfile::tempdir().unwrap();
        let unsynced = Unsynced::default();
        let path = dir.path().join("a");
        unsynced.replace(&path, b"a").unwrap();
        unsynced.remove(&path).unwrap();
        unsynced.remove(&path).unwrap();
        unsynced.sync().await.unwrap();
    }
}
