//! The image store: records and layers, on disk and in memory.

pub(super) mod index;
pub(super) mod layer_record;
pub(super) mod layers;
pub(super) mod record;
pub(super) mod recover;
pub(super) mod scratch;
