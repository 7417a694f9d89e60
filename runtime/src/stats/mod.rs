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
