//! Errors of a [`crate::Network`].

use std::path::PathBuf;

use crate::bridge::BridgeError;
use crate::cni::CniError;
use crate::namespaces::NamespaceError;
use crate::record::RecordError;
use crate::types::NotReady;

/// Error of attaching or detaching a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("invalid sandbox id {0:?}: at most 128 letters, digits, '_', '.' and '-' are allowed")]
    SandboxId(String),
    #[error("sandbox {0} is already attached")]
    AlreadyAttached(String),
    #[error("attachment record {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Cni(#[from] CniError),
    /// The blocking worker was lost, since the process is ending.
    #[error("network worker: {0}")]
    Worker(String),
}

impl NetworkError {
    /// Whether no pod can get a network now, but may later (CRI-503).
    pub fn is_not_ready(&self) -> bool {
        matches!(
            self,
            NetworkError::NotReady(_) | NetworkError::Bridge(BridgeError::NotReady(_))
        )
    }
}
