//! Configuration errors.

use std::path::PathBuf;

/// Configuration error: one line that names the key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {message}", path.display())]
    Parse { path: PathBuf, message: String },
    #[error("{key}: {message}")]
    Value { key: &'static str, message: String },
}

impl Error {
    pub(super) fn value(key: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::Value { key, message }
    }
}
