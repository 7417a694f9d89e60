//! Views of images: containers' roots and image volumes, mounted or looked into; and who uses which layers for one.

pub mod attributes;
mod copy_up;
pub mod overlay;
pub mod rootfs;
pub mod uses;
pub mod view;
pub mod volume;
