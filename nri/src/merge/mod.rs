//! One answer out of the answers of many plugins (NRI-5xx): a merge per operation.
//!
//! ```text
//!   new(request) ─► request() ─► plugin ─► apply(plugin, answer) ─┬─► request() … ─► finish()
//!                                                                  └─► MergeError: the operation fails
//! ```
//!
//! `request()` is what the next plugin is to see: the earlier answers are in it already
//! (NRI-406). After a `MergeError` the merge is spent; only a [`StopMerge`]
//! goes on, because nothing may stop its operations (NRI-410).
//!
//! Pure: no I/O, no clock. Where the reference is wrong (F in the spec) this does the mended
//! thing, never another wire format.

mod create;
mod error;
mod keyed;
mod resources;
mod run;
mod sides;
mod update;

pub use create::{CreateMerge, MergedCreate};
pub use error::MergeError;
pub use run::RunMerge;
pub use update::{Askers, MergedStop, MergedUpdate, StopMerge, UpdateMerge};

// For the oracles of `nri/fuzz`.
#[doc(hidden)]
pub use {
    keyed::clean_path,
    resources::{overlay, simple_fields},
};

pub(crate) use run::asked;
