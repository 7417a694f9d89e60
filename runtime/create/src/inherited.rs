//! The descriptors that the monitor hands over, by the protocol in `cairn_monitor::report`.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use cairn_monitor::report::{MOUNTS_FD, REPORT_FD, STATUS_FD};

const STDIO: [RawFd; 3] = [3, 4, 5];

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: main begins nothing without the report socket, which comes with the others; nobody in this process
    // closes them.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Messages to the monitor.
pub(crate) fn report() -> BorrowedFd<'static> {
    borrow(REPORT_FD)
}

/// The pipe that ends with execve.
pub(crate) fn status() -> BorrowedFd<'static> {
    borrow(STATUS_FD)
}

/// The mount namespace to build in; called once.
pub(crate) fn take_mounts() -> OwnedFd {
    // SAFETY: it comes with the report socket, and nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(MOUNTS_FD) }
}

/// Stdin, stdout, stderr of the container, before [`take_stdio`].
pub(crate) fn stdio() -> [BorrowedFd<'static>; 3] {
    STDIO.map(borrow)
}

/// The same to own; called once.
pub(crate) fn take_stdio() -> [OwnedFd; 3] {
    // SAFETY: as above, and nobody else owns them.
    STDIO.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
