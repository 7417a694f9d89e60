//! ttrpc over a multiplexed connection, by method name. The only room that names the crate `ttrpc`.
//!
//! We call by a client of our own: what `ttrpc` 0.10 does for a call takes four tasks, and leaves ids out of order on
//! the wire (NRI-140), data frames that pass for answers (NRI-136), and timeouts and sizes as texts (NRI-137, NRI-143).
//! We answer by its server. What that leaves to its user is done here:
//! - a message that is too long is refused before it is sent, with both sizes (NRI-131); one that comes in
//!   is answered as Go does (NRI-131);
//! - every method of a service is served, so that an unknown one is UNIMPLEMENTED (NRI-141);
//! - a peer that floods us with requests is read no further than [`frame::MAX_CALLS`] of them, and not
//!   while an answer waits to be written (NRI-108): ttrpc answers also what is no call, each on a
//!   task of its own, and those would pile up.
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
