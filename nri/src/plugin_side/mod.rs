//! API for authors of plugins: handlers, in the runtime's process or behind a socket.

pub(crate) mod builtin;
pub(crate) mod handlers;
#[cfg(feature = "stub")]
pub mod stub;
