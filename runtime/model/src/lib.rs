//! A deterministic model of pods: the daemon's code (driver, admission, steps, hooks, NRI library,
//! records on disk) on a machine in memory. One seed generates everything random, and kills occur
//! between any two polls of its tasks. `check.rs` and `plugins.rs` have the invariants.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod acknowledged;
mod bounds;
mod check;
mod clients;
mod clockwork;
mod drawn;
mod events;
mod images;
mod kept;
mod known;
mod memory;
mod monitors;
mod plan;
mod plugins;
mod rule;
mod shrink;
mod survived;
mod tally;
mod values;
mod world;

pub use known::known;
pub use plan::{Hazard, Plan, Plugin};
pub use rule::{Fault, Rule};
pub use shrink::shrink;
pub use tally::Tally;
pub use world::{Outcome, World, run};
