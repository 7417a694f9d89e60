//! Views of images: container roots and image volumes, mounted or read, and their uses of layers.

pub(super) mod attributes;
mod copy_up;
pub(super) mod overlay;
pub(super) mod rootfs;
pub(super) mod uses;
pub(super) mod view;
pub(super) mod volume;
