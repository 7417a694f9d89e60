//! Statistics and metrics of CRI (CRI-150…158), from a cgroup's raw numbers.
//!
//! ```text
//!   cgroup::Stats ─┐
//!   Sampler ───────┼─► convert ──► ContainerStats, PodSandboxStats      (pure)
//!   layer, network ┤
//!   Processes ─────┴─► metrics ──► descriptors, PodSandboxMetrics       (pure)
//! ```
//! Only the cgroup module, [`Sampler`], [`Layers`] and [`machine`] read the machine. A part that
//! cannot be read is absent, never 0 (CRI-154).

#![expect(
    clippy::disallowed_methods,
    reason = "blocks by nature: called by blocking()"
)]

pub mod convert;
mod families;
mod layers;
pub mod machine;
pub mod metrics;
mod reading;
mod sampler;

pub use layers::Layers;
pub use reading::{Container, Interface, LayerUsage, Pod, Sample};
pub use sampler::Sampler;
