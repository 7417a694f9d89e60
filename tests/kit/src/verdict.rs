//! The result of a point: it holds, it misses (with the expected and the observed value), or it is
//! skipped.

use std::fmt::{Debug, Display};

use tonic::Status;

/// Why a point does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    Fail {
        expected: String,
        seen: String,
    },
    /// The runtime or this machine lacks what the point needs: the missing feature.
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

/// The point cannot be asked here.
pub fn skip<T>(missing: impl Into<String>) -> Checked<T> {
    Err(Miss::Skip(missing.into()))
}

/// A condition.
pub fn that(holds: bool, expected: impl Into<String>, seen: impl Display) -> Checked {
    if holds { Ok(()) } else { miss(expected, seen) }
}

/// A value that must be the expected one.
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
    /// It must succeed.
    fn succeeds(self, call: &str) -> Checked<T>;
    /// It must fail; answers the error.
    fn fails(self, call: &str) -> Checked<Status>;
}

impl<T> Answer<T> for Result<T, Status> {
    fn succeeds(self, call: &str) -> Checked<T> {
        self.or_else(|status| miss(format!("{call} succeeds"), told(&status)))
    }
    fn fails(self, call: &str) -> Checked<Status> {
        match self {
            Ok(_) => miss(format!("{call} fails"), "it succeeds"),
            Err(status) => Ok(status),
        }
    }
}

/// A gRPC error as a person reads it.
pub fn told(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// The answer of the system. An error of it is reported as a fault of the suite.
pub fn done<T>(what: &str, result: std::io::Result<T>) -> Checked<T> {
    result.or_else(|error| miss(what, error))
}
