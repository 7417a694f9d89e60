//! The daemon's directories, and who may pass through them.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
};

use super::error::Error;

/// Makes a directory that others may pass through and not list: on the way to what a
/// container in a user namespace must reach, each below a directory of [`make_private`].
///
/// # Errors
/// When the file system refuses.
pub fn make_passage(dir: &Path) -> Result<(), Error> {
    make_dir(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).map_err(Error::io("open", dir))
}

/// Makes a directory that none but the daemon enters, and, to pass through, this user: the root of a user namespace, who
/// must reach what a container is made from. The ids of pods and containers are no secret on their host.
///
/// # Errors
/// When the file system refuses.
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
/// When the file system refuses.
pub fn make_dir(dir: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(Error::io("make", dir))
}
