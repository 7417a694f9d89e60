//! cairn: a small CRI runtime with NRI built in. See ARCHITECTURE.md.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may block"))]

pub mod accept;
pub mod blocking;
pub mod cgroup;
pub mod cli;
pub mod clock;
pub mod config;
pub mod cri;
pub mod daemon;
mod detached;
pub mod explain;
pub mod fault;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod host;
pub mod image;
pub mod inherited;
pub mod memory;
pub mod monitor;
pub mod oci;
pub mod one_line;
pub mod pod;
pub mod preflight;
pub mod remove;
pub mod replace;
pub mod seeded;
pub mod spans;
pub mod stats;
pub mod store;
pub mod stream;
pub mod trace;
mod walk;
