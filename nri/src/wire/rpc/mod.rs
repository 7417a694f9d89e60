//! ttrpc over a multiplexed connection, by method name. The only room that names `ttrpc`.
//!
//! What `ttrpc` 0.10 leaves to its user is done here:
//! - request ids go up on the wire (NRI-140): each call is polled once under a mutex, which takes its
//!   id and queues it, and at most [`frame::MAX_CALLS`] calls are open, so that the queue has room for each;
//! - a message that is too long is refused before it is sent, with both sizes (NRI-131, NRI-143); one that comes in
//!   is answered as Go does (NRI-131);
//! - a data frame in the place of an answer is garbage: ttrpc takes its bytes for the answer (NRI-136);
//! - a timeout is a variant, not a text (NRI-137): our clock decides, a status 4 counts as the same;
//! - every method of a service is served, so that an unknown one is UNIMPLEMENTED (NRI-141);
//! - a peer that floods us with requests is read no further than [`frame::MAX_CALLS`] of them, and not
//!   while an answer waits to be written (NRI-108): ttrpc answers also what is no call, each on a
//!   task of its own, and those would pile up.
#[cfg(test)]
mod against_go;
mod client;
mod frame;
mod server;
mod status;

pub(crate) use client::{Client, Metadata};
pub(crate) use server::{Incoming, Methods, Serve, Serving, serve, without_panic};
pub use status::{CallError, Code, Status};
pub(crate) use status::{ENVELOPE, MAX_MESSAGE, one_line};
