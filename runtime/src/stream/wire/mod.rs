//! Wire formats of the streaming server: pure, no I/O, no clock. Input is untrusted, so that all of
//! it is bounded.

pub mod channels;
pub mod dictionary;
pub mod handshake;
pub mod headers;
pub mod resize;
pub mod spdy;
pub mod status;

#[cfg(any(test, feature = "fuzzing"))]
pub mod checks;
