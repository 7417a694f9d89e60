//! cairn: a small CRI runtime with NRI built in. ARCHITECTURE.md is the map.

pub mod cgroup;
pub mod image;
pub mod monitor;
pub mod oci;
pub mod trace;
