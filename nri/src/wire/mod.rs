//! From bytes to calls: sockets, plugin files, processes, the multiplexer, ttrpc, names and
//! versions.

pub(crate) mod discover;
pub(crate) mod error;
pub(crate) mod event;
pub mod frame;
pub(crate) mod mux;
pub(crate) mod process;
pub(crate) mod rpc;
pub(crate) mod transport;
pub(crate) mod version;
