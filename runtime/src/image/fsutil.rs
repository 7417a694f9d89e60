//! What is asked of file systems in several places: entries by a directory's descriptor and a name, attributes, room, the
//! count of a tree, durable removal, and the parts of a file that are no holes.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat, statat};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::remove::children;
use crate::replace::sync_parent;

/// Bytes and inodes that may be used below `path`: never more than leaves the disk a tenth of what
/// is free. File systems that do not count inodes have enough of them.
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

/// Disk usage of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// Counts a tree that a container may be changing meanwhile: nothing is followed out of it, what
/// vanishes is passed over, and what lies deeper than a path can say is not counted.
pub(super) fn usage(root: &Path) -> io::Result<Usage> {
    let root: OwnedFd = File::open(root)?.into();
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut linked = HashSet::new();
    let mut used = Usage {
        bytes: 0,
        inodes: 1,
    };
    let mut todo = vec![Vec::from(b".")];
    while let Some(path) = todo.pop() {
        let Ok(dir) = rustix::fs::openat2(&root, &path[..], flags, Mode::empty(), resolve) else {
            continue;
        };
        for (name, is_dir) in children(dir.as_fd(), usize::MAX).unwrap_or_default() {
            let Ok(stat) = stat(&dir, &name) else {
                continue;
            };
            if is_dir {
                todo.push([&path[..], b"/", name.as_bytes()].concat());
            } else if stat.st_nlink > 1 && !linked.insert(stat.st_ino) {
                continue;
            }
            used.inodes += 1;
            used.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        }
    }
    Ok(used)
}

/// Removes a file, durably; one that is not there is removed already.
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

/// What the kernel says of an entry, a link itself.
pub(super) fn stat(dir: impl AsFd, name: impl Arg) -> rustix::io::Result<Stat> {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Opens whatever is there: the caller looks at its type. Never waits for the writer of a fifo put there meanwhile.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).map(File::from)
}

/// What a call writes into a buffer of a size that mostly does, or else of the kernel's largest.
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

/// The next part of a file that is no hole, from `at` on.
pub(super) fn data_from(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        // A file system that knows no holes.
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
    fn usage_counts_a_linked_file_once_and_follows_nothing() {
        let tmp = tempfile::tempdir().unwrap();
        let tree = tmp.path().join("tree");
        fs::create_dir_all(tree.join("d")).unwrap();
        fs::write(tree.join("d/f"), vec![1; 100_000]).unwrap();
        let before = usage(&tree).unwrap();
        assert_eq!(before.inodes, 3);
        assert!((100_000..200_000).contains(&before.bytes), "{before:?}");
        fs::hard_link(tree.join("d/f"), tree.join("again")).unwrap();
        assert_eq!(usage(&tree).unwrap(), before);
        fs::write(tmp.path().join("outside"), vec![1; 1_000_000]).unwrap();
        std::os::unix::fs::symlink(tmp.path(), tree.join("out")).unwrap();
        assert!(usage(&tree).unwrap().bytes < 200_000);
    }

    #[test]
    fn a_file_that_is_gone_is_removed_already() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a.json");
        fs::write(&path, b"one").unwrap();
        remove_durably(&path).unwrap();
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
        remove_durably(&path).unwrap();
    }
}
