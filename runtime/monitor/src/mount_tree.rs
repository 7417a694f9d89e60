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
    /// `MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED` or `MS_UNBINDABLE`; 0 changes nothing. Private: mounts on
    /// it do not propagate, not even to the mount it was copied from.
    pub propagation: u64,
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

/// Copies an open file or directory ([`copy`]).
pub fn copy_of(file: BorrowedFd<'_>, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    Ok(rustix::mount::open_tree(file, "", flags)?)
}

/// Mounts a tree at `target`, in the mount namespace of the calling thread.
pub fn attach(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, "", CWD, target, flags)?)
}

/// Mounts a tree, or moves a mount, on an open file or directory.
pub fn attach_on(tree: impl AsFd, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, "", target, "", flags)?)
}

/// Needs Linux 5.12.
#[allow(unsafe_code)]
pub fn set_attributes(tree: impl AsFd, attributes: &Attributes<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: attributes.set,
        attr_clr: attributes.clear,
        propagation: attributes.propagation,
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
