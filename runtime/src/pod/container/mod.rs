//! What can happen to a container: one file each. Every function here runs as a step of the
//! pod's driver, except exec, which uses no queue.

pub mod create;
pub mod exec;
pub mod exit;
mod moved;
pub mod remove;
pub mod start;
pub mod stop;
pub mod update;

use std::{
    io,
    path::{Path, PathBuf},
};

use super::error::{Result, Step as _};
use crate::{cgroup, services::Services};

/// The container's own directory below `state`: bundle, sockets, exit file.
pub fn dir(services: &Services, id: &str) -> PathBuf {
    services.config.state.join("containers").join(id)
}

/// Where the root is mounted, in the mount namespace of the create helper.
pub fn rootfs_path(services: &Services, id: &str) -> PathBuf {
    dir(services, id).join("rootfs")
}

/// Takes the root's mount off the host's mount table: once a container is made, its own mount
/// namespace keeps it. Nothing mounted is fine.
pub fn unmount_root(path: &Path) {
    use rustix::mount::{UnmountFlags, unmount};
    // What cannot be unmounted shows when the directory is removed.
    let _ = unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

/// What the image declares as VOLUME lies here; on disk, and gone with the container.
pub fn volumes_dir(services: &Services, id: &str) -> PathBuf {
    services.config.root.join("volumes").join(id)
}

/// The cgroup of a path from a record.
///
/// # Errors
/// A path that is no cgroup path; records hold none such.
pub fn cgroup(services: &Services, path: &str) -> Result<cgroup::Cgroup> {
    let path = cgroup::CgroupPath::parse(path).step("cgroup path")?;
    Ok(services.cgroups.cgroup(path))
}

/// Idempotent.
///
/// # Errors
/// What is left.
pub async fn remove_volumes(services: &Services, id: &str) -> Result<()> {
    let dir = volumes_dir(services, id);
    match tokio::fs::remove_dir_all(&dir).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).step(&format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
