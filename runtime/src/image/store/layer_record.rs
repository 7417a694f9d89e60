//! Record of a committed layer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::image::digest::Digest;

/// Of `layer.json`.
pub(crate) const SCHEMA: u32 = 1;
/// The inventory of a layer's tree, beside it.
pub(crate) const INVENTORY: &str = "tree";

/// Record of a committed layer; `layer.json` beside its tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LayerInfo {
    pub schema: u32,
    pub chain_id: Digest,
    pub diff_id: Digest,
    /// Bytes and inodes its tree takes on disk, as counted when it was unpacked.
    pub disk_bytes: u64,
    pub inodes: u64,
    /// It hides everything below it (an opaque marker at its root).
    pub opaque: bool,
    /// Digest of the inventory of its tree; none of a layer that an earlier version unpacked, or of a tree that is too
    /// large for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<Digest>,
}

#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub dir: PathBuf,
    pub info: LayerInfo,
}
