//! Merges the answers of several plugins into one (NRI-5xx): a merge per operation.
//!
//! ```text
//!   new(request) ─► request() ─► plugin ─► apply(plugin, answer) ┬► request() … ► finish()
//!                                                                └► MergeError: operation fails
//! ```
//!
//! `request()` is the request for the next plugin and includes the earlier answers (NRI-406). After
//! a `MergeError` the merge is unusable; only a [`StopMerge`] continues, because no plugin may stop
//! its operation (NRI-410).
//!
//! Pure: no I/O, no clock. Bugs of Go's implementation are fixed here, without a change of the wire
//! format (nri/README.md, *Differences from Go*).

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
pub use update::{Askers, MergedStop, MergedUpdate, Share, StopMerge, UpdateMerge};

// For the oracles of `nri/fuzz`.
#[doc(hidden)]
pub use {
    keyed::clean_path,
    resources::{overlay, simple_fields},
};

pub(crate) use run::asked;
