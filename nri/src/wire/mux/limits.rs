//! Limits of frames and of the buffers of a trunk.

/// The largest payload of one frame: a ttrpc message of 4 MiB and its header (NRI-106).
pub const MAX_FRAME: usize = (4 << 20) + 10;
/// Unread bytes of a logical connection before the trunk is closed.
pub(super) const INBOUND_BUDGET: usize = 16 << 20;
/// Bytes that may wait for the socket before writers are blocked.
pub(super) const OUTBOUND_BUDGET: usize = 1 << 20;
/// The start of each message must be in a frame of at most this many bytes (NRI-110).
pub(crate) const SHORT_FRAME: usize = 4096;
