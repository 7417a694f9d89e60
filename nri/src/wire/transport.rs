//! The runtime's socket: listening without taking another runtime's.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

use super::error::TransportError;

/// A listening socket; its file goes with it (NRI-102).
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Fails if someone answers at `path`, or if there is something that is no socket.
pub(crate) async fn ensure_free(path: &Path) -> Result<(), TransportError> {
    let meta = match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(meta) => meta,
    };
    if !meta.file_type().is_socket() {
        return Err(TransportError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(TransportError::InUse(path.to_owned())),
        Err(_) => Ok(()),
    }
}

/// Listens at `path`; a dead socket that is in the way is removed, nothing else is.
pub(crate) async fn listen(path: &Path, mode: u32) -> Result<Listener, TransportError> {
    let fail = |step| {
        let path = path.to_owned();
        move |cause| TransportError::Socket { path, step, cause }
    };
    ensure_free(path).await?;
    if let Some(parent) = path.parent() {
        let mut dir = fs::DirBuilder::new();
        let made = dir.recursive(true).mode(0o700).create(parent);
        made.map_err(fail("make its directory"))?;
    }
    if fs::symlink_metadata(path).is_ok() {
        fs::remove_file(path).map_err(fail("remove the dead socket"))?;
    }
    let listener = UnixListener::bind(path).map_err(fail("listen"))?;
    let listener = Listener {
        listener,
        path: path.to_owned(),
    };
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).map_err(fail("set its mode"))?;
    Ok(listener)
}
