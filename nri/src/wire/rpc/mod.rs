//! ttrpc over a multiplexed connection, by method name. The only module that names the crate
//! `ttrpc`.
//!
//! Calls use our own client: `ttrpc` 0.10 takes four tasks for a call, and leaves ids out of order
//! on the wire (NRI-140), data frames that pass for answers (NRI-136), and timeouts and sizes as
//! texts (NRI-137, NRI-143). Answers use its server, completed here:
//! - a message that is too long is rejected before it is sent, with both sizes (NRI-131); an
//!   incoming one is answered as Go does (NRI-131);
//! - every method of a service is served, so that an unknown one is UNIMPLEMENTED (NRI-141);
//! - at most [`frame::MAX_CALLS`] requests are read from a peer at once, and none while an answer
//!   waits to be written (NRI-108): ttrpc answers also messages that are not calls, each on its own
//!   task, and those would pile up.
#[cfg(test)]
mod against_go;
mod client;
pub(crate) mod envelope;
mod frame;
mod server;
mod status;

pub(crate) use client::{Client, Extra, Metadata};
pub(crate) use server::{Incoming, Methods, Serve, Serving, serve, without_panic};
pub use status::{CallError, Code, Status, one_line};
pub(crate) use status::{ENVELOPE, MAX_MESSAGE, ROOM};
