//! cairn: a small CRI runtime with NRI built in. ARCHITECTURE.md is the map.

pub mod app;
pub mod args;
pub mod cairn_service;
pub mod cdi;
pub mod cgroup;
pub mod client;
pub mod clock;
pub mod config;
pub mod cri;
pub mod fault;
pub mod host;
pub mod image;
pub mod metrics;
pub mod monitor;
pub mod oci;
mod plugin_table;
pub mod pod;
pub mod services;
pub mod stats;
pub mod store;
pub mod trace;
