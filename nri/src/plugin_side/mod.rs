//! The plugin side: the trait for plugins, its handler table, and the service of the table, in the
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
