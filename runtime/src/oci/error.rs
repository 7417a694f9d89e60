//! Errors of building a spec: one line naming the field and the cause, and a kind for the edge to map.

use thiserror::Error;

/// Kind of an error; `cri/status.rs` maps these to gRPC codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong in itself.
    Invalid,
    /// Something the request names does not exist.
    NotFound,
    /// The request is right, this host or this runtime cannot honour it.
    Unsupported,
}

/// A refusal. `field` is the path of the CRI or NRI field, such as `linux.security_context.run_as_group`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// One field, and what is wrong with it.
    #[error("{field}: {cause}")]
    Field {
        kind: ErrorKind,
        field: String,
        cause: String,
    },
    /// Recursive read-only was asked for and cannot be had; the prefix is a contract (CRI-243).
    #[error("RROUnsupported: mount {destination}: {cause}")]
    RroUnsupported { destination: String, cause: String },
    /// An image volume cannot be mounted; the prefix is a contract (CRI-245).
    #[error("ImageVolumeMountFailed: mount {destination}: {cause}")]
    ImageVolume { destination: String, cause: String },
    /// Neither the container nor the image says what to run (CRI-126).
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

    /// The path of the field that it is about, where there is one.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Field { field, .. } => Some(field),
            Self::RroUnsupported { .. } | Self::ImageVolume { .. } | Self::NoCommand => None,
        }
    }

    /// The same refusal, told of this field.
    #[must_use]
    pub fn of_field(mut self, path: &str) -> Self {
        if let Self::Field { field, .. } = &mut self {
            path.clone_into(field);
        }
        self
    }

    /// Kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Field { kind, .. } => *kind,
            Self::ImageVolume { .. } | Self::NoCommand => ErrorKind::Invalid,
            Self::RroUnsupported { .. } => ErrorKind::Unsupported,
        }
    }
}
