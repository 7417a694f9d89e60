//! Record of a committed layer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::image::digest::Digest;

/// Version of `layer.json`.
pub(crate) const SCHEMA: u32 = 1;

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
}

#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub dir: PathBuf,
    pub info: LayerInfo,
}
