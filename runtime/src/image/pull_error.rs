//! Errors of pulls.

use super::error::Error;
use super::reference::BadReference;
use super::registry::hosts::BadHosts;
use crate::host::lookup::Unanswered;

/// Error of a pull: one line, no secrets.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PullError {
    #[error(transparent)]
    Reference(#[from] BadReference),
    #[error("credentials: {0}")]
    Credentials(&'static str),
    #[error(transparent)]
    Hosts(#[from] BadHosts),
    #[error("registry configuration: {0}")]
    Configuration(#[from] Unanswered),
    /// No host answers (CRI-407: clients look for the prefix).
    #[error("RegistryUnavailable: {host}: {why}")]
    Unavailable { host: String, why: String },
    #[error("RegistryUnavailable: {host}: no data received")]
    Stalled { host: String },
    #[error("{host}: {what}: manifest unknown")]
    NotFound { host: String, what: String },
    #[error("{host}: authentication required: {why}")]
    Unauthenticated { host: String, why: String },
    #[error("{host}: access denied: {why}")]
    Denied { host: String, why: String },
    #[error("{host}: {why}")]
    Registry { host: String, why: String },
    #[error(transparent)]
    Store(#[from] Error),
    #[error("the pull was interrupted")]
    CutShort,
}

impl PullError {
    /// Whether an error of another host is more useful than this one.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            PullError::Unavailable { .. } | PullError::Stalled { .. }
        )
    }
}
