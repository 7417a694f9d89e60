//! The one system call of this part that no crate wraps: `mount_setattr` with an id mapping.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Shows the detached tree `tree` with owners shifted as in the user namespace `userns` (CRI-452).
/// The tree must not have been attached yet.
pub fn idmap(tree: BorrowedFd<'_>, userns: BorrowedFd<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(userns.as_raw_fd()).map_err(io::Error::other)?,
    };
    // SAFETY: the path is a NUL-terminated literal and `attr` a live struct of the size given; the
    // kernel reads both during the call and keeps neither. Both descriptors are open by their types.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
