//! Directories that are not yet, or no longer, in the image store: under `tmp/` and `trash/`, with
//! unique numbers. Both are removed when the store is opened.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::blocking::try_blocking;
use crate::image::error::Error;
use crate::remove::remove_tree_at;

pub(crate) struct Scratch {
    root: PathBuf,
    next: AtomicU64,
}

/// A directory under `tmp/`, removed when dropped unless it was renamed away.
pub(crate) struct TempDir {
    scratch: Arc<Scratch>,
    pub path: PathBuf,
}

impl Scratch {
    /// Below the store's `root`; numbers start at `next`.
    pub(crate) fn new(root: &Path, next: u64) -> Self {
        Self {
            root: root.to_owned(),
            next: AtomicU64::new(next),
        }
    }

    /// Moves a directory to the trash and removes it in the background (CRI-454).
    pub(crate) fn discard(&self, dir: &Path) {
        let trash = self.fresh("trash");
        if let Err(e) = fs::rename(dir, &trash) {
            let removed = match e.kind() {
                io::ErrorKind::NotFound => Ok(()),
                // Image volumes may be on another file system; they are small.
                io::ErrorKind::CrossesDevices => remove_tree_at(dir),
                _ => Err(e),
            };
            if let Err(e) = removed {
                tracing::warn!(dir = %dir.display(), "cannot discard: {e}");
            }
            return;
        }
        remove_in_background(trash);
    }

    pub(crate) fn temp_dir(self: &Arc<Self>) -> Result<TempDir, Error> {
        let path = self.fresh("tmp");
        fs::create_dir(&path).map_err(Error::io("image store", "create", &path))?;
        Ok(TempDir {
            scratch: self.clone(),
            path,
        })
    }

    /// An unused name in this directory.
    pub(crate) fn fresh(&self, dir: &str) -> PathBuf {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.root.join(dir).join(n.to_string())
    }

    /// For files that are removed when they are closed, or when the store is opened next.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Continues removals that a crash interrupted, and removes incomplete directories.
    pub(crate) fn sweep(&self) -> Result<(), Error> {
        for entry in self.entries("trash")? {
            remove_in_background(entry.path());
        }
        for entry in self.entries("tmp")? {
            self.discard(&entry.path());
        }
        Ok(())
    }

    fn entries(&self, dir: &str) -> Result<Vec<fs::DirEntry>, Error> {
        let dir = self.root.join(dir);
        let entries = fs::read_dir(&dir).map_err(Error::io("image store", "sweep", &dir))?;
        Ok(entries.flatten().collect())
    }
}

const TRASH_AGAIN: Duration = Duration::from_secs(1);
const TRASH_SELDOM: Duration = Duration::from_secs(300);

/// Trees removed at a time: threads for blocking work are shared, and a container shapes a tree.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Removes a tree. Retries after a failure (no descriptor, a disk's error), 1 s to 300 s apart.
fn remove_in_background(path: PathBuf) {
    let remove = move || {
        let removed = remove_tree_at(&path);
        if let Err(e) = &removed {
            tracing::warn!(dir = %path.display(), "cannot remove the directory, will retry: {e}");
        }
        removed.is_ok()
    };
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        remove();
        return;
    };
    runtime.spawn(async move {
        let mut pause = TRASH_AGAIN;
        loop {
            // Never closed: a permit always comes.
            let turn = TURNS.acquire().await;
            if let Ok(true) = try_blocking(remove.clone()).await {
                return;
            }
            drop(turn);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(TRASH_SELDOM);
        }
    });
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if self.path.exists() {
            self.scratch.discard(&self.path);
        }
    }
}
