//! What happened: one event log that feeds the timeline, the stream of `cairn timeline -f` and the
//! file that outlives the daemon.
//!
//! ```text
//!   pod steps ─┐                    ┌─ ring in memory (bounded) ──► subscribers
//!   hooks ─────┼─► EventLog::record ┤
//!   plugins ───┘    (never blocks)  └─ queue (bounded) ──► writer thread ──► JSON lines, rotated
//! ```
//! Whoever records says what happened, never how it is to look: [`timeline`] alone decides that, from
//! events alone. No event has a field for an environment value.

mod event;
mod files;
mod log;
pub mod text;
pub mod timeline;
mod words;
mod writer;

pub use event::{Event, Life, Outcome, SCHEMA, Step, Subject, What};
pub use log::{EventLog, Filter, Options};
