//! cairn: a small CRI runtime with NRI built in. ARCHITECTURE.md is the map.

pub mod args;
pub mod cgroup;
pub mod config;
pub mod image;
pub mod monitor;
pub mod oci;
pub mod stats;
pub mod trace;
