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
    /// The field's value is wrong.
    #[error("{field}: {cause}")]
    Invalid { field: String, cause: String },
    /// The field names something that is not there.
    #[error("{field}: {cause}")]
    NotFound { field: String, cause: String },
    /// The field is understood but cannot be honoured here.
    #[error("{field}: {cause}")]
    Unsupported { field: String, cause: String },
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
    pub(crate) fn invalid(field: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::Invalid {
            field: field.into(),
            cause: cause.into(),
        }
    }

    pub(crate) fn not_found(field: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::NotFound {
            field: field.into(),
            cause: cause.into(),
        }
    }

    pub(crate) fn unsupported(field: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::Unsupported {
            field: field.into(),
            cause: cause.into(),
        }
    }

    /// The path of the field that it is about, where there is one.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Invalid { field, .. }
            | Self::NotFound { field, .. }
            | Self::Unsupported { field, .. } => Some(field),
            Self::RroUnsupported { .. } | Self::ImageVolume { .. } | Self::NoCommand => None,
        }
    }

    /// The same refusal, told of this field.
    #[must_use]
    pub fn of_field(mut self, path: &str) -> Self {
        if let Self::Invalid { field, .. }
        | Self::NotFound { field, .. }
        | Self::Unsupported { field, .. } = &mut self
        {
            path.clone_into(field);
        }
        self
    }

    /// Kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } | Self::ImageVolume { .. } | Self::NoCommand => ErrorKind::Invalid,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Unsupported { .. } | Self::RroUnsupported { .. } => ErrorKind::Unsupported,
        }
    }
}
