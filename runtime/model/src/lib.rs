//! A deterministic model of pods: the daemon's code (driver, admission, steps, hooks, NRI library,
//! records on disk) on a machine in memory. One seed generates everything random, and kills occur
//! between any two polls of its tasks. `check.rs` and `plugins.rs` have the invariants.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod check;
mod clients;
mod clockwork;
mod memory;
mod monitors;
mod plan;
mod plugins;
mod tally;
mod world;

pub use plan::Plan;
pub use plugins::Plugin;
pub use tally::Tally;
pub use world::{Outcome, World, run};
