//! Sample NRI plugins: each a module with a [`nri::Plugin`], and a binary of the same name that
//! serves it. Shared code is in `cli` (flags as in the Go samples), `annotations` and `plugin`.
//!
//! Each module documents its behaviour; `-help` of each binary documents its usage.

pub mod annotations;
pub mod cli;
pub mod default_validator;
pub mod demo_adjuster;
pub mod device_injector;
pub mod differ;
pub mod dump;
pub mod hook_injector;
mod links;
pub mod log;
pub mod logger;
pub mod network_device_injector;
pub mod network_logger;
pub mod plugin;
pub mod rdt;
pub mod template;
pub mod ulimit_adjuster;
pub mod v010_adapter;
pub mod writable_cgroups;
mod yaml;
