//! The plugin side: a trait to write a plugin as, the table it becomes, and what serves the table, in the
//! runtime's process or behind a socket.

mod adopt;
pub(crate) mod answer;
pub(crate) mod builtin;
pub(crate) mod context;
pub(crate) mod handlers;
pub(crate) mod plugin;
pub(crate) mod runtime;
pub(crate) mod runtime_info;
pub(crate) mod service;
#[cfg(feature = "stub")]
pub mod stub;
