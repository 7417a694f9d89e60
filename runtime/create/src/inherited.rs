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

fn take(fd: RawFd) -> OwnedFd {
    // SAFETY: it is there as the borrowed ones are; each is taken once, and borrowed by nobody afterwards.
    unsafe { OwnedFd::from_raw_fd(fd) }
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
    take(MOUNTS_FD)
}

/// Stdin, stdout, stderr of the container, before [`take_stdio`].
pub(crate) fn stdio() -> [BorrowedFd<'static>; 3] {
    STDIO.map(borrow)
}

/// The same to own; called once.
pub(crate) fn take_stdio() -> [OwnedFd; 3] {
    STDIO.map(take)
}
