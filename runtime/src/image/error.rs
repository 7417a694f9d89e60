//! Errors of images on this machine, and the wrapper for blocking disk work.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use super::digest::Digest;
use super::reference::BadReference;
use super::store::record::BadRecord;
use crate::blocking::try_blocking;

/// Error of images on this machine, in one line.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("{object} {}: cannot {step}: {cause}", path.display())]
    Io {
        object: &'static str,
        step: &'static str,
        path: PathBuf,
        cause: String,
    },
    #[error(transparent)]
    Reference(#[from] BadReference),
    #[error("image id {0:?} is ambiguous")]
    Ambiguous(String),
    #[error("layer {0} is not in the store")]
    NoLayer(Digest),
    #[error("image {0} is not in the store")]
    NoImage(Digest),
    #[error("the image unpacks to more than {max} {what} (image.{key})")]
    TooLarge {
        what: &'static str,
        max: u64,
        key: &'static str,
    },
    #[error("layer {layer}: {why}")]
    Layer { layer: Digest, why: String },
    #[error("blob {blob}: {why}")]
    Blob { blob: String, why: String },
    #[error("manifest {manifest}: {why}")]
    Manifest { manifest: String, why: String },
    #[error("image config: {0}")]
    Config(#[from] BadRecord),
    #[error("image archive: {0}")]
    Archive(String),
    #[error("image volume: {0}")]
    Volume(String),
    #[error("mount of {what}: {step}: {cause}")]
    Mount {
        what: String,
        step: &'static str,
        cause: String,
    },
    #[error("image operation interrupted: {0}")]
    Task(String),
}

impl Error {
    /// For `map_err`: object, step and path of a failed file operation.
    pub(super) fn io(
        object: &'static str,
        step: &'static str,
        path: &Path,
    ) -> impl Fn(io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |e| Error::Io {
            object,
            step,
            path: path.clone(),
            cause: e.to_string(),
        }
    }

    /// For `map_err`: the failed step in the making of a layer.
    pub(super) fn layer<E: Display>(layer: &Digest, step: &'static str) -> impl FnOnce(E) -> Error {
        move |e| Error::Layer {
            layer: layer.clone(),
            why: format!("{step}: {e}"),
        }
    }
}

/// Runs disk work on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = try_blocking(work).await;
    done.unwrap_or_else(|e| Err(Error::Task(e.to_string())))
}
