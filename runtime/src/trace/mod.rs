//! The event log. It feeds the timeline, `cairn timeline -f`, and files that outlive the daemon.
//!
//! ```text
//!   pod steps ─┐                    ┌─► following subscribers
//!   hooks ─────┼─► EventLog::record ┤
//!   plugins ───┘    (never blocks)  └─► queue (bounded) ──► writer thread ──► JSON lines, rotated
//!                                                              └─ kept if the disk fails (bounded)
//! ```
//! Recorders state what happened, never how to show it: only `cli/timeline.rs` decides that, from
//! events alone. No event has a field for an environment value.

#![expect(
    clippy::disallowed_methods,
    reason = "blocks by nature: a thread of its own writes"
)]

mod event;
mod files;
mod log;
mod shares;
mod unwritten;
mod values;
mod writer;

pub use event::{Action, Event, SCHEMA, Subject, What};
pub use log::{EventLog, Filter, Options};
/// The library's types are those of the log.
pub use nri::{Outcome, PluginEvent as Life};
pub use values::{Changed, Values, field_and_key, hide_variables, shown, value};
