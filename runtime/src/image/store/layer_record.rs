//! Record of a committed layer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::image::digest::Digest;

/// Version of `layer.json`.
pub(crate) const SCHEMA: u32 = 1;
/// File of the inventory, beside a layer's tree.
pub(crate) const INVENTORY: &str = "tree";

/// Record of a committed layer: `layer.json` beside its tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LayerInfo {
    pub schema: u32,
    pub chain_id: Digest,
    pub diff_id: Digest,
    /// Bytes and inodes of its tree on disk, counted at unpacking.
    pub disk_bytes: u64,
    pub inodes: u64,
    /// It hides everything below it (an opaque marker at its root).
    pub opaque: bool,
    /// Digest of its tree's inventory; `None` if an earlier version unpacked the layer, or the tree
    /// is too large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<Digest>,
}

#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub dir: PathBuf,
    pub info: LayerInfo,
}
