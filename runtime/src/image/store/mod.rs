//! What is kept of images: records and layers, on disk and in memory.

pub mod aside;
pub mod index;
pub mod layer_record;
pub mod layers;
pub mod record;
pub mod recover;
pub mod scratch;
