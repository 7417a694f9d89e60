//! One answer out of the answers of many plugins (NRI-5xx): a merge per operation.
//!
//! ```text
//!   new(request) ─► request() ─► plugin ─► apply(plugin, answer) ─┬─► request() … ─► finish()
//!                                                                  └─► MergeError: the operation fails
//! ```
//!
//! `request()` is what the next plugin is to see: the earlier answers are in it already
//! (NRI-406). After a `MergeError` the merge is spent; only a [`StopMerge`] and a [`SyncMerge`]
//! go on, because nothing may stop those operations (NRI-410).
//!
//! Pure: no I/O, no clock. Where the reference is wrong (F in the spec) this does the mended
//! thing, never another wire format.

mod create;
mod keyed;
mod resources;
mod update;

pub use create::{CreateMerge, MergedCreate};
pub use update::{MergedStop, MergedUpdate, StopMerge, SyncMerge, UpdateMerge};

#[cfg(feature = "fuzzing")]
pub(crate) use {
    keyed::clean_path,
    resources::{overlay, simple_fields},
};

use proto_nri::Field;

use crate::owners::{Conflict, PluginId};

/// Why an answer cannot be taken into the merge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error(transparent)]
    Conflict(#[from] Box<Conflict>),
    /// NRI-540.
    #[error("plugin {plugin} updates container {container}, which is still being created")]
    UpdatesCreated { plugin: PluginId, container: String },
    /// NRI-570.
    #[error("plugin {plugin} evicts container {container}, which is still being created")]
    EvictsCreated { plugin: PluginId, container: String },
    #[error("plugin {plugin} sets {} with the key {key:?}: {why}", field.as_str_name())]
    BadKey {
        plugin: PluginId,
        field: Field,
        key: String,
        why: &'static str,
    },
}
