//! Spans of calls and of their steps, sent by OTLP to a configured collector.
//!
//! ```text
//! daemon/traced.rs ─ Recorder::call ─► CURRENT ── step(…) ─► spans ► queue ► Exporter ► collector
//!      one CRI call    sampled?      of the task     at their end  bounded  batches   gRPC
//! ```
//!
//! Without a collector, or for an unsampled call, no span is made: a step costs one look-up of task
//! data. Nothing waits for the collector. Tasks that continue a call pass on [`here`] by
//! [`Context::scope`].

mod current;
mod export;
mod parent;
mod wire;

pub use current::{Context, Open, Recorder, ended, here, step, step_of};
pub use export::start;
#[cfg(any(test, feature = "fuzzing"))]
pub use parent::check as check_parent;
pub use wire::Value;
