//! The result of a point: it holds, it misses (with the expected and the observed value), or it is
//! skipped.

use std::fmt::{Debug, Display};

use tonic::Status;

/// The reason why a point does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    Fail {
        expected: String,
        seen: String,
    },
    /// The runtime or this machine lacks this feature, which the point needs.
    Skip(String),
}

/// The result of a step of a point.
pub type Checked<T = ()> = Result<T, Miss>;

/// A miss.
pub fn miss<T>(expected: impl Into<String>, seen: impl Display) -> Checked<T> {
    Err(Miss::Fail {
        expected: expected.into(),
        seen: seen.to_string(),
    })
}

/// Skips a point that cannot be tested here.
pub fn skip<T>(missing: impl Into<String>) -> Checked<T> {
    Err(Miss::Skip(missing.into()))
}

/// Checks a condition.
pub fn that(holds: bool, expected: impl Into<String>, seen: impl Display) -> Checked {
    if holds { Ok(()) } else { miss(expected, seen) }
}

/// Checks that a value equals the expected one.
pub fn same<A, B>(what: &str, expected: A, seen: B) -> Checked
where
    A: PartialEq<B> + Debug,
    B: Debug,
{
    let holds = expected == seen;
    that(
        holds,
        format!("{what}: {expected:?}"),
        format!("{what}: {seen:?}"),
    )
}

/// The answer to a call, as a step of a point.
pub trait Answer<T> {
    /// Checks that the call succeeded.
    fn succeeds(self, call: &str) -> Checked<T>;
    /// Checks that the call failed; returns the error.
    fn fails(self, call: &str) -> Checked<Status>;
}

impl<T> Answer<T> for Result<T, Status> {
    fn succeeds(self, call: &str) -> Checked<T> {
        self.or_else(|status| miss(format!("{call} succeeds"), reported(&status)))
    }
    fn fails(self, call: &str) -> Checked<Status> {
        match self {
            Ok(_) => miss(format!("{call} fails"), "it succeeds"),
            Err(status) => Ok(status),
        }
    }
}

/// A gRPC error in a readable form.
pub fn reported(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// Returns the result of a system call. An error is reported as a fault of the suite.
pub fn done<T>(what: &str, result: std::io::Result<T>) -> Checked<T> {
    result.or_else(|error| miss(what, error))
}
