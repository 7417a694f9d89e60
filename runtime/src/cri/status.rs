//! Turns errors into gRPC codes; no other file does (CRI-006).

use std::time::Duration;

use tonic::{Code, Status};

use crate::pod::error::{Error, Kind};

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match error.kind {
            Kind::NotFound => Code::NotFound,
            Kind::Invalid => Code::InvalidArgument,
            Kind::WrongState => Code::FailedPrecondition,
            Kind::Exists => Code::AlreadyExists,
            Kind::Exhausted => Code::ResourceExhausted,
            Kind::TimedOut => Code::DeadlineExceeded,
            Kind::Unavailable => Code::Unavailable,
            Kind::Unsupported => Code::Unimplemented,
            Kind::Unauthenticated => Code::Unauthenticated,
            Kind::Denied => Code::PermissionDenied,
            Kind::Failed => Code::Internal,
            // Kubelet reads these texts from the first byte, and only under this code.
            Kind::Verbatim => Code::Unknown,
        };
        Self::new(code, error.text)
    }
}

/// An RPC, or a kind of request to it, that cairn does not serve.
pub fn unserved(what: &str, why: &str) -> Status {
    let text = format!("{what}: not served by cairn: {why}");
    Status::new(Code::Unimplemented, text)
}

/// Whether the runtime does not serve the call at all: our own commands also call other runtimes.
pub fn is_unserved(status: &Status) -> bool {
    status.code() == Code::Unimplemented
}

/// Whether the requested object was not found.
pub fn is_not_found(status: &Status) -> bool {
    status.code() == Code::NotFound
}

/// A call that exceeded its caller's timeout of `allowed`.
pub fn overdue(allowed: Duration) -> Status {
    let text = format!(
        "the caller's deadline of {allowed:?} is over: what goes on without the caller is shown by List and Status, \
         and the same request again joins it"
    );
    Status::new(Code::DeadlineExceeded, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_object_is_not_found_and_a_wrong_moment_a_failed_precondition() {
        let code = |kind| Status::from(Error::new(kind, "x")).code();
        assert_eq!(code(Kind::NotFound), Code::NotFound);
        assert_eq!(code(Kind::WrongState), Code::FailedPrecondition);
        assert_eq!(code(Kind::TimedOut), Code::DeadlineExceeded);
    }

    #[test]
    fn a_message_is_one_line() {
        let status = Status::from(Error::failed("first\nsecond\x1b[2J\n"));
        assert_eq!(status.message(), r"first\nsecond\u001b[2J");
    }
}
