//! Spans of calls and of their steps, by OTLP to a collector, where one is configured.
//!
//! ```text
//!  daemon/traced.rs ── Recorder::call ─► CURRENT ── step(…) ─► spans ── a bounded queue ─► Exporter ── gRPC ─► collector
//!       one CRI call     sampled?        of the task            as they end, if there is room     in batches
//! ```
//!
//! Where nothing is configured, or a call is not sampled, no span is made: a step costs a look at the task's own data.
//! Nothing waits for the collector. Tasks that go on with a call's work take its context along: [`here`] and
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
