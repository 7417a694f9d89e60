//! Reasons for the end of a trunk.

use std::time::Duration;

use super::limits::{INBOUND_BUDGET, MAX_FRAME};

/// Reason for the end of a trunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MuxError {
    /// We closed it.
    #[error("connection closed")]
    Closed,
    /// The peer closed it between two frames.
    #[error("connection closed by the peer")]
    Eof,
    /// The peer closed it inside a frame.
    #[error("connection closed by the peer in the middle of a frame")]
    Truncated,
    /// The socket failed.
    #[error("connection lost: {0}")]
    Io(String),
    /// A frame claims a length above the limit (NRI-107).
    #[error("frame of {0} bytes on connection {1}: at most {MAX_FRAME} are allowed")]
    FrameTooLong(usize, u32),
    /// The peer sends faster than its logical connection is served (NRI-108).
    #[error("more than {INBOUND_BUDGET} unread bytes on connection {0}")]
    Overflow(u32),
    /// The peer does not read (NRI-115).
    #[error("peer has read nothing for {0:?}")]
    Stalled(Duration),
}
