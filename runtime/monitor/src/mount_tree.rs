//! Detached mount trees, for the daemon and `cairn-create`. Each ends with its last descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

/// `MOUNT_ATTR_*` bits to set and to clear, and a user namespace that shifts the owners.
#[derive(Default)]
pub struct Attributes<'fd> {
    pub set: u64,
    pub clear: u64,
    pub userns: Option<BorrowedFd<'fd>>,
    /// Mounts on it do not propagate, not even to the mount it was copied from.
    pub private: bool,
    /// Includes the mounts below.
    pub recursive: bool,
}

/// Attributes of a mount that is only read, and never executed from.
pub const SEALED: u64 = libc::MOUNT_ATTR_RDONLY
    | libc::MOUNT_ATTR_NOSUID
    | libc::MOUNT_ATTR_NODEV
    | libc::MOUNT_ATTR_NOEXEC;

/// The only files inside a procfs that may be mount targets: lxcfs and similar tools replace them.
/// runc has the same list.
pub const PROC_FILES: [&str; 10] = [
    "cpuinfo",
    "diskstats",
    "meminfo",
    "stat",
    "swaps",
    "uptime",
    "loadavg",
    "slabinfo",
    "sys/kernel/ns_last_pid",
    "sys/crypto/fips_enabled",
];

/// Copies the mount at `path`, or its part below `path`; with the mounts below if `recursive`.
pub fn copy(path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    Ok(rustix::mount::open_tree(CWD, path, flags)?)
}

/// Copies an open directory ([`copy`]) without the mounts below.
pub fn copy_of(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(directory, "", flags)?)
}

/// Mounts a tree at `target`, in the mount namespace of the calling thread.
pub fn attach(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, "", CWD, target, flags)?)
}

pub fn attach_on(tree: &OwnedFd, directory: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, "", directory, "", flags)?)
}

/// Needs Linux 5.12.
#[allow(unsafe_code)]
pub fn set_attributes(tree: &OwnedFd, attributes: &Attributes<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: attributes.set,
        attr_clr: attributes.clear,
        propagation: if attributes.private {
            libc::MS_PRIVATE
        } else {
            0
        },
        userns_fd: attributes.userns.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let mut flags = libc::AT_EMPTY_PATH;
    if attributes.recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: the path is a C string and `attr` a live struct of the given size; the kernel reads
    // both during the call and keeps neither. The descriptors are open by their types.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
