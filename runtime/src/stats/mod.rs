//! Statistics and metrics as CRI has them (CRI-150…158), made of a cgroup's raw numbers.
//!
//! ```text
//!   cgroup::Stats ─┐
//!   Sampler ───────┼─► convert ──► ContainerStats, PodSandboxStats      (pure)
//!   layer, network ┤
//!   Processes ─────┴─► metrics ──► descriptors, PodSandboxMetrics       (pure)
//! ```
//! What reads the machine is apart: the cgroup module, [`Sampler`], [`Layers`] and [`machine`]. A part that
//! could not be read is absent, never 0 (CRI-154).

pub mod convert;
mod families;
mod layers;
pub mod machine;
pub mod metrics;
mod sampler;

pub use layers::Layers;
pub use sampler::Sampler;

use crate::cgroup;
use cni_shim::Counters;

/// One reading of a cgroup.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// When it was read, in ns since the epoch; advances from sample to sample (CRI-153).
    pub at_ns: i64,
    pub stats: cgroup::Stats,
    /// CPU time per second in ns, from [`Sampler::rate`]; `None` while there is no rate yet.
    pub nano_cores: Option<u64>,
}

/// What a container's writable layer takes (CRI-155).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerUsage {
    pub at_ns: i64,
    /// A directory on the filesystem of the snapshots, such as the store's root.
    pub mountpoint: String,
    pub used_bytes: u64,
    pub inodes_used: u64,
}

/// One interface in a pod's network namespace, as `cni_shim` reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub counters: Counters,
}
