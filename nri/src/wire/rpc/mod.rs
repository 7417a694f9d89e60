//! ttrpc over a multiplexed connection, by method name. Only this module uses the crate `ttrpc`.
//!
//! Calls use our own client. The client of `ttrpc` 0.10 sends ids out of order (NRI-140), accepts
//! data frames as answers (NRI-136), and reports timeouts and sizes as text only (NRI-137, NRI-143).
//! It needs four tasks per call, and 0.11 ms per event and plugin; ours needs 0.08 ms.
//!
//! Answers use the server of `ttrpc`, with these changes:
//! - an answer that is too long is rejected before it is sent, with both sizes; a request that is
//!   too long gets Go's code (NRI-131);
//! - every method of a service is served, so that an unknown one is UNIMPLEMENTED (NRI-141);
//! - at most [`status::MAX_CALLS`] requests are read from a peer at once, and none while an answer
//!   waits to be written (NRI-108): `ttrpc` starts a task for each message that is not a call, and
//!   these tasks would pile up.
#[cfg(test)]
mod against_go;
mod client;
mod corrections;
pub(crate) mod envelope;
mod server;
mod status;

pub(crate) use client::{Client, Extra};
pub(crate) use server::{Incoming, Serve, Serving, serve, without_panic};
pub use status::{CallError, Code, Status, one_line};
pub(crate) use status::{ENVELOPE, MAX_MESSAGE, ROOM};
