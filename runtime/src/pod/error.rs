//! Errors of requests to pods and containers. Cloneable, because several callers may wait for one
//! step. Only `cri/status.rs` turns a kind into a gRPC code.

use crate::one_line::{cut, one_line};

/// Characters of an id that a plugin or client sent, in an error or event.
pub const LONGEST_ID: usize = 256;

/// The kind of failure, from the caller's view; not a gRPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    NotFound,
    /// The request is invalid.
    Invalid,
    /// The state does not allow the request.
    WrongState,
    /// The name is taken.
    Exists,
    /// A limit was reached.
    Exhausted,
    /// A process did not die, or a deadline passed.
    TimedOut,
    /// The daemon is shutting down.
    Unavailable,
    /// The kernel or our build does not support the request.
    Unsupported,
    /// The registry requires other credentials (CRI-407).
    Unauthenticated,
    /// The registry denies access with these credentials.
    Denied,
    /// Any other failure.
    Failed,
    /// Passed to the caller with its text unchanged from the first byte (CRI-007).
    Verbatim,
}

/// One line: object, step, cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    pub kind: Kind,
    pub text: String,
}

impl Error {
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        let text = text.into();
        // Pod events show these messages: one line (CRI-006).
        let text = one_line(text.trim_end()).into_owned();
        Self { kind, text }
    }

    pub fn failed(text: impl Into<String>) -> Self {
        Self::new(Kind::Failed, text)
    }

    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, text)
    }

    pub fn no_sandbox(id: &str) -> Self {
        Self::new(Kind::NotFound, format!("sandbox {id:?}: not found"))
    }

    pub fn no_container(id: &str) -> Self {
        let id = cut(id, LONGEST_ID);
        Self::new(Kind::NotFound, format!("container {id:?}: not found"))
    }

    /// Prefixes the cause with the object and step.
    #[must_use]
    pub fn at(self, what: &str) -> Self {
        if self.kind == Kind::Verbatim {
            return self;
        }
        Self::new(self.kind, format!("{what}: {}", self.text))
    }
}

impl From<crate::oci::SpecError> for Error {
    fn from(error: crate::oci::SpecError) -> Self {
        use crate::oci::{ErrorKind, SpecError};
        let kind = match (&error, error.kind()) {
            (SpecError::RroUnsupported { .. } | SpecError::ImageVolume { .. }, _) => Kind::Verbatim,
            (_, ErrorKind::Invalid) => Kind::Invalid,
            (_, ErrorKind::NotFound) => Kind::NotFound,
            (_, ErrorKind::Unsupported) => Kind::Unsupported,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<crate::host::lookup::Unanswered> for Error {
    fn from(error: crate::host::lookup::Unanswered) -> Self {
        use crate::host::lookup::Unanswered;
        let kind = match &error {
            Unanswered::TimedOut { .. } | Unanswered::Stuck(_) => Kind::TimedOut,
            Unanswered::Ended(_) => Kind::WrongState,
            Unanswered::Crowded(_) => Kind::Exhausted,
            Unanswered::Helper { .. } => Kind::Failed,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<crate::fault::Fired> for Error {
    fn from(fault: crate::fault::Fired) -> Self {
        Self::failed(fault.to_string())
    }
}

impl From<crate::store::Error> for Error {
    fn from(error: crate::store::Error) -> Self {
        let kind = match error {
            crate::store::Error::Deleted { .. } => Kind::NotFound,
            _ => Kind::Failed,
        };
        Self::new(kind, error.to_string())
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Prefixes any error with "object: step".
pub trait AtStep<T> {
    /// # Errors
    /// The cause as [`Kind::Failed`], under the given object and step.
    fn step(self, what: &str) -> Result<T>;
}

impl<T, E: std::fmt::Display> AtStep<T> for std::result::Result<T, E> {
    fn step(self, what: &str) -> Result<T> {
        self.map_err(|cause| Error::failed(format!("{what}: {cause}")))
    }
}
