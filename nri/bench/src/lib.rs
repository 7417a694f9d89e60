//! nri-bench simulates a container runtime for a plugin under test, in any language: no root, no
//! containers, the real wire.
//!
//! ```text
//!   scenario.toml ─► scenario/ ─► run/ ─► FakeRuntime (nri-testing) ◄─ tap/ ◄─ plugin.rs
//!                                  │          results                messages
//!                                  ▼
//!                    rules, adjustment, changes ─► report/
//! ```
//!
//! [docs/bench.md](../../../docs/bench.md) is for users.
#![forbid(unsafe_code)]

mod adjustment;
mod changes;
pub mod cli;
mod differ;
mod expect;
mod init;
mod line;
mod plugin;
mod record;
mod replay;
mod report;
pub mod rules;
mod run;
pub mod scenario;
mod tap;
