//! Errors of building a spec: one line with field and cause, and a kind for the gRPC code.

use std::fmt;

use nri::{owners::ContainerOwners, place};
use proto_nri::Field;
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

/// The field that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A field of a CRI request or of an update, by its path, such as `linux.sysctls`.
    Path(String),
    /// A field of an adjustment, or one of its keys.
    Adjusted {
        field: Field,
        key: Option<String>,
        /// Plugins, separated by commas; empty until [`SpecError::set_by`].
        set_by: String,
    },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.write_str(path),
            Self::Adjusted { field, key, set_by } => {
                write!(f, "adjust.{}", place::path(*field, key.as_deref()))?;
                match set_by.as_str() {
                    "" => Ok(()),
                    plugins => write!(f, " (set by {plugins})"),
                }
            }
        }
    }
}

impl From<&str> for Subject {
    fn from(path: &str) -> Self {
        Self::Path(path.to_owned())
    }
}

impl From<String> for Subject {
    fn from(path: String) -> Self {
        Self::Path(path)
    }
}

impl From<(Field, Option<&str>)> for Subject {
    fn from((field, key): (Field, Option<&str>)) -> Self {
        let (key, set_by) = (key.map(str::to_owned), String::new());
        Self::Adjusted { field, key, set_by }
    }
}

impl From<(Field, &str)> for Subject {
    fn from((field, key): (Field, &str)) -> Self {
        (field, Some(key)).into()
    }
}

impl From<Field> for Subject {
    fn from(field: Field) -> Self {
        (field, None).into()
    }
}

/// A refused request.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// One field and the cause.
    #[error("{field}: {cause}")]
    Field {
        kind: ErrorKind,
        field: Subject,
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
    fn of(kind: ErrorKind, field: impl Into<Subject>, cause: impl Into<String>) -> Self {
        let (field, cause) = (field.into(), cause.into());
        Self::Field { kind, field, cause }
    }

    pub(crate) fn invalid(field: impl Into<Subject>, cause: impl Into<String>) -> Self {
        Self::of(ErrorKind::Invalid, field, cause)
    }

    pub(crate) fn not_found(field: impl Into<Subject>, cause: impl Into<String>) -> Self {
        Self::of(ErrorKind::NotFound, field, cause)
    }

    pub(crate) fn unsupported(field: impl Into<Subject>, cause: impl Into<String>) -> Self {
        Self::of(ErrorKind::Unsupported, field, cause)
    }

    /// The same error about another field.
    #[must_use]
    pub fn about(mut self, subject: impl Into<Subject>) -> Self {
        if let Self::Field { field, .. } = &mut self {
            *field = subject.into();
        }
        self
    }

    /// The same error with the plugins that set the field.
    #[must_use]
    pub fn set_by(mut self, owners: &ContainerOwners) -> Self {
        if let Self::Field { field, .. } = &mut self
            && let Subject::Adjusted { field, key, set_by } = field
        {
            *set_by = owners.setters(*field, key.as_deref()).join(", ");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_field_its_key_and_the_plugin_that_set_it() {
        let mut owners = ContainerOwners::default();
        let plugin = "30-p".parse().expect("an id");
        let claimed = owners.claim_key(&plugin, Field::Mounts, "/x");
        claimed.expect("free");
        let text = |error: SpecError| error.set_by(&owners).to_string();
        let error = |subject: Subject| text(SpecError::invalid(subject, "no"));
        for (subject, expected) in [
            (
                (Field::Mounts, "/x").into(),
                "adjust.mounts[\"/x\"] (set by 30-p): no",
            ),
            ((Field::Mounts, "/y").into(), "adjust.mounts[\"/y\"]: no"),
            (Field::Mounts.into(), "adjust.mounts (set by 30-p): no"),
            ("mounts".into(), "mounts: no"),
        ] {
            assert_eq!(error(subject), expected);
        }
    }
}
