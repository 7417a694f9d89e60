//! Atomic file replacement, and removals that tolerate missing files.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Replaces a file atomically: readers see the old or the new content. A failed write is removed;
/// [`remove`] also removes a crash's leftover.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary(path);
    let written = write(&temporary, content, mode).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is reported.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Makes a directory and its parents, private to the daemon.
pub(crate) fn make_private(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(dir)
}

/// Removes a file and its unfinished replacement; a missing one is fine.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    ignore_missing(fs::remove_file(path))?;
    ignore_missing(fs::remove_file(temporary(path)))
}

/// Treats a missing file as removed.
pub(crate) fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content)
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}
