//! Listens at the runtime's socket, and never replaces the socket of another runtime.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

use super::error::TransportError;

/// A listening socket; its file is removed with it (NRI-102).
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

/// Fails if a server answers at `path`, or if the file is not a socket.
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

/// Listens at `path`; removes only a dead socket there. A missing directory is created so that
/// permitted users can reach the socket.
pub(crate) async fn listen(
    path: &Path,
    mode: u32,
    group: Option<u32>,
) -> Result<Listener, TransportError> {
    let fail = |step| {
        let path = path.to_owned();
        move |cause| TransportError::Socket { path, step, cause }
    };
    ensure_free(path).await?;
    if let Some(parent) = path.parent() {
        let open_to_others = mode & 0o066 != 0;
        let mut dir = fs::DirBuilder::new();
        let of_dir = if open_to_others { 0o711 } else { 0o700 };
        let made = dir.recursive(true).mode(of_dir).create(parent);
        made.map_err(fail("make its directory"))?;
        let of_dir = fs::metadata(parent).map_err(fail("make its directory"))?;
        if open_to_others && of_dir.permissions().mode() & 0o011 == 0 {
            let dir = parent.display();
            tracing::warn!(
                "NRI socket: only the owner of {dir} reaches it, whatever the mode of the socket"
            );
        }
    }
    if fs::symlink_metadata(path).is_ok() {
        fs::remove_file(path).map_err(fail("remove the dead socket"))?;
    }
    let listener = UnixListener::bind(path).map_err(fail("listen"))?;
    let listener = Listener {
        listener,
        path: path.to_owned(),
    };
    chown(path, None, group).map_err(fail("set its group"))?;
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).map_err(fail("set its mode"))?;
    Ok(listener)
}
