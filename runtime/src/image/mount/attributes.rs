//! Copies owner, mode, times and extended attributes of a directory.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::image::fsutil::filled;

/// Copies owner, attributes, mode and times of one directory to another. A container's upper
/// directory gets those of its image's root (CRI-451).
pub(crate) fn copy_attributes(from: impl AsFd, to: impl AsFd) -> rustix::io::Result<()> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let stat = rustix::fs::fstat(from)?;
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::fchown(to, Some(uid), Some(gid))?;
    copy_xattrs(from, to)?;
    rustix::fs::fchmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    rustix::fs::futimens(to, &times(&stat))
}

/// The times of a file, to set on another.
pub(crate) fn times(stat: &Stat) -> Timestamps {
    let time = |sec, nsec: u64| Timespec {
        tv_sec: sec,
        tv_nsec: nsec.try_into().unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Copies all attributes but overlayfs's own, which are valid only in their layer.
fn copy_xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let names = match filled(|buffer| rustix::fs::flistxattr(from, buffer)) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other?,
    };
    let names = names.split(|b| *b == 0).filter(|n| !n.is_empty());
    for name in names.filter(|n| !n.starts_with(b"trusted.overlay.")) {
        let value = filled(|buffer| rustix::fs::fgetxattr(from, name, buffer))?;
        match rustix::fs::fsetxattr(to, name, &value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
