//! Views of images: containers' roots and image volumes, mounted or looked into; and who uses which layers for one.

pub(super) mod attributes;
mod copy_up;
pub(super) mod overlay;
pub(super) mod rootfs;
pub(super) mod uses;
pub(super) mod view;
pub(super) mod volume;
