//! Event log: it feeds the timeline, the stream of `cairn timeline -f` and the
//! file that outlives the daemon.
//!
//! ```text
//!   pod steps ─┐                    ┌─► subscribers that follow
//!   hooks ─────┼─► EventLog::record ┤
//!   plugins ───┘    (never blocks)  └─► queue (bounded) ──► writer thread ──► JSON lines, rotated
//!                                                              └─ what the disk refuses waits (bounded)
//! ```
//! Whoever records says what happened, never how it is to look: `cli/timeline.rs` alone decides
//! that, from events alone. No event has a field for an environment value.

#![expect(
    clippy::disallowed_methods,
    reason = "blocks by nature: a thread of its own writes"
)]

mod event;
mod files;
mod log;
mod unwritten;
mod writer;

pub use event::{Action, Event, Life, Outcome, SCHEMA, Subject, What};
pub use log::{EventLog, Filter, Options};
