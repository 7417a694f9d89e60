//! ImageService: one file per RPC, named after it. Each translates, calls, translates.

pub mod image_fs_info;
pub mod image_status;
pub mod list_images;
pub mod pull_image;
pub mod remove_image;
