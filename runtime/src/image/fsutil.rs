//! Small file-system steps: atomic replace, and removal of trees somebody else has shaped.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat, renameat, statat, unlinkat,
};

/// Times a directory being removed may be found refilled.
const REFILLED_MAX: u32 = 1000;

/// Replaces `path` by these bytes so that a reader, or a crash, sees the old or the new file whole.
/// The bytes and the name are on stable storage when this returns.
pub fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_parent(path)
}

/// Bytes that may be written below `path`: never more than leaves the disk a tenth of what is free.
pub fn room(path: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    Ok(free - free / 10)
}

/// What a tree takes on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// Counts a tree that a container may be changing meanwhile: nothing is followed out of it, what
/// vanishes is passed over, and what lies deeper than a path can say is not counted.
pub fn usage(root: &Path) -> io::Result<Usage> {
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
        for (name, is_dir) in children(dir.as_fd()).unwrap_or_default() {
            let Ok(stat) = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) else {
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
pub fn remove_durably(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(()) => sync_parent(path),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Removes whatever `path` names, never following a symlink; what is not there is removed already.
pub fn remove_tree_at(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = match File::open(parent) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let name = CString::new(name.as_encoded_bytes())?;
    Ok(remove_tree(parent.as_fd(), &name)?)
}

/// Removes `name` below `parent`, with all it holds.
///
/// Containers choose how deep a tree is, so nothing here recurses or holds a descriptor per level:
/// a nested directory is first moved up beside its parent, then emptied in its turn.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
        other => return other,
    }
    let top = open_dir(parent, name)?;
    let mut moved = 0u64;
    let mut refilled = 0;
    loop {
        let mut emptied = 0u64;
        for (child, is_dir) in children(top.as_fd())? {
            if !is_dir {
                unlinkat(&top, &child, AtFlags::empty())?;
                continue;
            }
            let dir = open_dir(top.as_fd(), &child)?;
            for (grandchild, is_dir) in children(dir.as_fd())? {
                if is_dir && unlinkat(&dir, &grandchild, AtFlags::REMOVEDIR).is_err() {
                    lift(dir.as_fd(), &grandchild, top.as_fd(), &mut moved)?;
                } else if !is_dir {
                    unlinkat(&dir, &grandchild, AtFlags::empty())?;
                }
            }
            unlinkat(&top, &child, AtFlags::REMOVEDIR)?;
            emptied += 1;
        }
        if emptied == 0 {
            match unlinkat(parent, name, AtFlags::REMOVEDIR) {
                // Somebody still puts something in: a helper that outlives its daemon a moment.
                Err(rustix::io::Errno::NOTEMPTY) if refilled < REFILLED_MAX => refilled += 1,
                other => return other,
            }
        }
    }
}

/// Moves a directory up into `top` under a name that is free there.
fn lift(
    from: BorrowedFd<'_>,
    name: &CStr,
    top: BorrowedFd<'_>,
    moved: &mut u64,
) -> rustix::io::Result<()> {
    loop {
        *moved += 1;
        let free = format!(".removed.{moved}");
        match rustix::fs::renameat_with(from, name, top, &free, rustix::fs::RenameFlags::NOREPLACE)
        {
            Err(rustix::io::Errno::EXIST) => continue,
            // A file system without RENAME_NOREPLACE: rename onto a non-empty directory fails anyway.
            Err(rustix::io::Errno::INVAL) => return renameat(from, name, top, &free),
            other => return other,
        }
    }
}

fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

fn children(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<(CString, bool)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let is_dir = match entry.file_type() {
            FileType::Unknown => {
                let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            }
            kind => kind == FileType::Directory,
        };
        found.push((name.to_owned(), is_dir));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_deeper_than_any_stack_is_removed_and_a_symlink_in_it_is_not_followed() {
        let tmp = tempfile::tempdir().unwrap();
        fs::write(tmp.path().join("kept"), "x").unwrap();
        let top = tmp.path().join("top");
        fs::create_dir(&top).unwrap();
        std::os::unix::fs::symlink(tmp.path().join("kept"), top.join("link")).unwrap();
        std::os::unix::fs::symlink(tmp.path(), top.join("dirlink")).unwrap();
        let mut at: OwnedFd = File::open(&top).unwrap().into();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&at, ".removed.1", Mode::RWXU).unwrap();
            at = open_dir(at.as_fd(), c"d").unwrap();
        }
        remove_tree_at(&top).unwrap();
        assert!(!top.exists());
        assert!(tmp.path().join("kept").exists());
        remove_tree_at(&top).unwrap();
    }

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
    fn a_durable_write_replaces_the_file_and_leaves_no_temporary_one() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a.json");
        write_durably(&path, b"one").unwrap();
        write_durably(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 1);
        remove_durably(&path).unwrap();
        remove_durably(&path).unwrap();
    }
}
