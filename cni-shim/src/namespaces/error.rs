//! Errors of namespaces.

use std::io;

use crate::netlink::NetlinkError;

/// Error of making, entering or removing namespaces.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("sysctl {name}: {reason}")]
    Sysctl { name: String, reason: String },
    #[error("invalid request for namespaces: {0}")]
    Invalid(String),
    #[error("{step}: {cause}")]
    Io { step: String, cause: io::Error },
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("sandbox helper: {0}")]
    Helper(String),
}

impl NamespaceError {
    pub(super) fn io<E: Into<io::Error>>(step: impl Into<String>) -> impl FnOnce(E) -> Self {
        let step = step.into();
        move |cause| Self::Io {
            step,
            cause: cause.into(),
        }
    }
}
