//! Files that appear whole or not at all, and removals that find nothing.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Replaces a file so that a reader sees the old or the new content, never a part. What could not be written whole is
/// removed; what a crash leaves of it, [`remove`] takes along.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary(path);
    let written = write(&temporary, content, mode).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Makes a directory, and those above it, which nobody else may look into.
pub(crate) fn make_private(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(dir)
}

/// Removes a file, and what was being written to take its place. One that is gone is fine.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    gone(fs::remove_file(path))?;
    gone(fs::remove_file(temporary(path)))
}

/// What comes of a removal, for whom it is fine if there was nothing.
pub(crate) fn gone(removed: io::Result<()>) -> io::Result<()> {
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
