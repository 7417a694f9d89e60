//! The daemon's directories, and their permissions.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
};

use super::error::Error;

/// Makes a directory that others may pass through but not list: a container in a user namespace
/// needs files below it. Each is below a directory of [`make_private`].
///
/// # Errors
/// The file system's.
pub fn make_passage(dir: &Path) -> Result<(), Error> {
    make_dir(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).map_err(Error::io("open", dir))
}

/// Makes a directory that only the daemon may enter. `passes` may pass through: the root of a user
/// namespace needs the files of its container. Ids are not secret on their host.
///
/// # Errors
/// The file system's.
pub fn make_private(dir: &Path, passes: Option<u32>) -> Result<(), Error> {
    make_dir(dir)?;
    let mode = if passes.is_some() { 0o500 } else { 0o700 };
    std::os::unix::fs::chown(dir, passes, None)
        .and_then(|()| fs::set_permissions(dir, fs::Permissions::from_mode(mode)))
        .map_err(Error::io("close", dir))
}

/// Makes a directory and its parents, private to the daemon.
///
/// # Errors
/// The file system's.
pub fn make_dir(dir: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(Error::io("make", dir))
}
