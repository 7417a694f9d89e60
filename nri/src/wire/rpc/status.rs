//! Results of a call: a code, a status, an error; and a peer's text as one line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Open calls per connection, in each direction.
pub(super) const MAX_CALLS: usize = 64;
/// The longest ttrpc message, envelope included (NRI-131).
pub(crate) const MAX_MESSAGE: usize = 4 << 20;
/// Room for the envelope of a request: service, method, timeout and lengths.
pub(crate) const ENVELOPE: usize = 256;
/// Room in the first message about a pod or container: later ones are longer, by times, addresses,
/// an exit and the like (NRI-323).
pub(crate) const ROOM: usize = 64 << 10;

/// The status codes used by NRI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Unavailable = 14,
}

/// An error that crosses the wire: a code and one line of text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
#[serde(into = "String", from = "String")]
pub struct Status {
    /// A gRPC code.
    pub code: i32,
    /// Text for people.
    pub message: String,
}

impl Status {
    /// A status of one of the codes we use.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code: code as i32,
            message: message.into(),
        }
    }

    /// True if this is the code.
    pub fn is(&self, code: Code) -> bool {
        self.code == code as i32
    }

    /// The code's name, as in metrics.
    pub(crate) fn name(&self) -> &'static str {
        const NAMES: [&str; 17] = [
            "ok",
            "canceled",
            "unknown",
            "invalid_argument",
            "deadline_exceeded",
            "not_found",
            "already_exists",
            "permission_denied",
            "resource_exhausted",
            "failed_precondition",
            "aborted",
            "out_of_range",
            "unimplemented",
            "internal",
            "unavailable",
            "data_loss",
            "unauthenticated",
        ];
        let known = usize::try_from(self.code).ok();
        known
            .and_then(|code| NAMES.get(code))
            .unwrap_or(&"unknown_code")
    }
}

/// Characters of a peer's text that our texts include.
const MAX_TEXT: usize = 1000;

/// Makes a peer's text safe for a log or an error: one line of limited length.
pub fn one_line(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.chars().take(MAX_TEXT).map(plain).collect();
    if line.len() < text.len() {
        line.push('…');
    }
    line
}

/// Error of a call, such as a plugin's request for updates.
///
/// ```
/// use nri::{CallError, Code};
///
/// fn is_worth_another_try(error: &CallError) -> bool {
///     match error {
///         CallError::Status(status) => status.is(Code::Unavailable),
///         CallError::TimedOut(_) | CallError::Lost(_) => true,
///         _ => false,
///     }
/// }
/// assert!(is_worth_another_try(&CallError::Lost("the runtime went away".into())));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The peer answered with an error.
    #[error("{0}")]
    Status(Status),
    /// No answer in time: by our clock, or as the peer reports.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The connection was lost or violated the protocol.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The request cannot be sent.
    #[error("request of {len} bytes exceeds the limit of {limit}")]
    TooLong { len: usize, limit: usize },
    /// The answer does not parse as the expected message.
    #[error("answer cannot be decoded: {0}")]
    BadReply(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_text_becomes_one_short_line() {
        assert_eq!(one_line("two\nlines\u{1b}[31m"), "two lines [31m");
        let long = one_line(&"ä".repeat(5000));
        assert_eq!(long.chars().count(), MAX_TEXT + 1);
        assert!(long.ends_with('…'));
    }
}
