//! Sample NRI plugins: each a module with a [`nri::Plugin`], and a binary of the same name that serves
//! it. What they share is in `cli` (flags as the Go samples have them), `annotations` and `plugin`.
//!
//! Each module says what it does; each binary says how to use it.

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
