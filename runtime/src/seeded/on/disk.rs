//! A disk that loses changes without a sync at a power cut.

use std::{
    collections::BTreeSet,
    fs, mem,
    path::{Path, PathBuf},
};

use super::with;

/// Called before a file is replaced or removed.
#[expect(clippy::disallowed_methods, reason = "in a test")]
pub fn before_change(path: &Path) {
    with(|run| {
        if run.seed.is_some() && !run.unsynced.contains_key(path) {
            let content = fs::read(path).ok();
            run.unsynced.insert(path.to_owned(), content);
        }
    });
}

/// Called when the last changes of these files are on disk.
pub fn on_disk(paths: &BTreeSet<PathBuf>) {
    with(|run| run.unsynced.retain(|path, _| !paths.contains(path)));
}

/// Undoes changes that are not on disk, as far as `is_lost` says so.
#[expect(clippy::disallowed_methods, reason = "in a test")]
pub fn cut_power(mut is_lost: impl FnMut() -> bool) {
    for (path, content) in with(|run| mem::take(&mut run.unsynced)) {
        if is_lost() {
            let undone = match content {
                Some(content) => fs::write(&path, content),
                None => fs::remove_file(&path).or(Ok(())),
            };
            undone.expect("an undone change");
        }
    }
}
