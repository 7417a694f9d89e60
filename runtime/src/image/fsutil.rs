//! File system helpers: entries by directory descriptor and name, attributes, free room, durable
//! removal, and the data of sparse files.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, statat};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::replace::sync_parent;

/// Usable bytes and inodes below `path`: all free ones but a tenth. A file system that does not
/// count inodes has enough of them.
pub(super) fn room(path: &Path) -> io::Result<(u64, u64)> {
    let disk = rustix::fs::statvfs(path)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let inodes = if disk.f_files == 0 {
        u64::MAX
    } else {
        disk.f_favail
    };
    Ok((free - free / 10, inodes - inodes / 10))
}

/// Removes a file durably; a missing one counts as removed.
pub(super) fn remove_durably(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(()) => sync_parent(path),
    }
}

pub(super) fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

/// The status of an entry, without following a symlink.
pub(super) fn stat(dir: impl AsFd, name: impl Arg) -> rustix::io::Result<Stat> {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Opens a file of any type, which the caller checks. Never waits for the writer of a fifo.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).map(File::from)
}

/// The output of a call that fills a buffer: first a small one, else one of the kernel's largest.
pub(super) fn filled(
    mut write: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    const LARGEST: usize = 64 << 10;
    let mut small = [0; 512];
    match write(&mut small) {
        Err(Errno::RANGE) => {}
        other => return Ok(small[..other?].to_vec()),
    }
    let mut large = vec![0; LARGEST];
    let length = write(&mut large)?;
    large.truncate(length);
    Ok(large)
}

/// The next range of data (not a hole) from `at` on.
pub(super) fn data_from(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        // A file system that does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        start => start?,
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    Ok(Some((start, end.min(size))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_counts_as_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a.json");
        fs::write(&path, b"one").unwrap();
        remove_durably(&path).unwrap();
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
        remove_durably(&path).unwrap();
    }
}
