//! ImageFsInfo (CRI-176): clients also use it as their probe at connect (CRI-004).

use proto_cri::v1 as cri;

use crate::{clock, image::Images};

pub fn image_fs_info(images: &Images) -> cri::ImageFsInfoResponse {
    let info = images.fs_info();
    let usage = cri::FilesystemUsage {
        timestamp: clock::now_ns(),
        fs_id: Some(cri::FilesystemIdentifier {
            mountpoint: info.mountpoint.display().to_string(),
        }),
        used_bytes: Some(cri::UInt64Value {
            value: info.used_bytes,
        }),
        inodes_used: Some(cri::UInt64Value {
            value: info.inodes_used,
        }),
    };
    cri::ImageFsInfoResponse {
        image_filesystems: vec![usage.clone()],
        container_filesystems: vec![usage],
    }
}
