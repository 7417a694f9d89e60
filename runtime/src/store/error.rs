//! Why a record could not be kept.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::fault::Fired;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{step} {}: {source}", path.display())]
    Io {
        step: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is in use by another cairn, pid {pid}", path.display())]
    Locked { path: PathBuf, pid: String },
    #[error("write record {id}: {message}")]
    Encode { id: String, message: String },
    #[error("{kind} {id}: not found")]
    Deleted { kind: &'static str, id: String },
    #[error("fault point {0}")]
    Fault(#[from] Fired),
}

impl Error {
    pub(super) fn io(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { step, path, source }
    }
}
