//! The descriptors that the monitor passes, as in `cairn_monitor::report`.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use cairn_monitor::report::{MOUNTS_FD, REPORT_FD, STATUS_FD};

const STDIO: [RawFd; 3] = [3, 4, 5];

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: main stops without the report socket, which comes with the others; none is closed.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn take(fd: RawFd) -> OwnedFd {
    // SAFETY: it is open like the borrowed ones; taken once, and not borrowed afterwards.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub(crate) fn report() -> BorrowedFd<'static> {
    borrow(REPORT_FD)
}

/// The pipe that execve closes.
pub(crate) fn status() -> BorrowedFd<'static> {
    borrow(STATUS_FD)
}

/// Takes the mount namespace to build in; called once.
pub(crate) fn take_mounts() -> OwnedFd {
    take(MOUNTS_FD)
}

/// Borrows the container's stdin, stdout and stderr, before [`take_stdio`].
pub(crate) fn stdio() -> [BorrowedFd<'static>; 3] {
    STDIO.map(borrow)
}

/// Takes the same; called once.
pub(crate) fn take_stdio() -> [OwnedFd; 3] {
    STDIO.map(take)
}
