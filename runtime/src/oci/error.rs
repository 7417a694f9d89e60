//! Errors of building a spec: one line with field and cause, and a kind for the gRPC code.

use thiserror::Error;

/// Kind of an error, which `cri/status.rs` maps to a gRPC code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is invalid.
    Invalid,
    /// An object that the request names does not exist.
    NotFound,
    /// The request is valid, but this host or this runtime cannot honour it.
    Unsupported,
}

/// A refused request. `field` is the CRI or NRI path, such as `linux.sysctls`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// One field and the cause.
    #[error("{field}: {cause}")]
    Field {
        kind: ErrorKind,
        field: String,
        cause: String,
    },
    /// Recursive read-only is unavailable; the prefix is a contract (CRI-243).
    #[error("RROUnsupported: mount {destination}: {cause}")]
    RroUnsupported { destination: String, cause: String },
    /// An image volume cannot be mounted; the prefix is a contract (CRI-245).
    #[error("ImageVolumeMountFailed: mount {destination}: {cause}")]
    ImageVolume { destination: String, cause: String },
    /// Neither the container nor the image has a command (CRI-126).
    #[error("no command specified: neither the container nor the image has a command")]
    NoCommand,
}

impl SpecError {
    fn of(kind: ErrorKind, field: impl Into<String>, cause: impl Into<String>) -> Self {
        let (field, cause) = (field.into(), cause.into());
        Self::Field { kind, field, cause }
    }

    pub(crate) fn invalid(field: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::of(ErrorKind::Invalid, field, cause)
    }

    pub(crate) fn not_found(field: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::of(ErrorKind::NotFound, field, cause)
    }

    pub(crate) fn unsupported(field: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::of(ErrorKind::Unsupported, field, cause)
    }

    /// The path of the field, if the error has one.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Field { field, .. } => Some(field),
            Self::RroUnsupported { .. } | Self::ImageVolume { .. } | Self::NoCommand => None,
        }
    }

    /// The same error, reported for this field.
    #[must_use]
    pub fn of_field(mut self, path: &str) -> Self {
        if let Self::Field { field, .. } = &mut self {
            path.clone_into(field);
        }
        self
    }

    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Field { kind, .. } => *kind,
            Self::ImageVolume { .. } | Self::NoCommand => ErrorKind::Invalid,
            Self::RroUnsupported { .. } => ErrorKind::Unsupported,
        }
    }
}
