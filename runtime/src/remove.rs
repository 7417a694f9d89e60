//! Removal of trees that somebody else has shaped: the only place where the daemon deletes a directory with its content.
//!
//! Containers and images choose how deep and how wide a tree is, so nothing here recurses, holds a descriptor per
//! level or a directory's whole list: a nested directory is first moved up beside its parent, then emptied in its
//! turn. No symlink is followed, and no mount is entered: one that is met is an error, and what is mounted stays whole.

#![expect(
    clippy::disallowed_methods,
    reason = "blocks by nature: called by blocking()"
)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, DirEntry, FileType, IFlags, Mode, OFlags, RenameFlags, ResolveFlags, openat,
    openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

/// Entries of a directory in memory at a time.
const BATCH: usize = 4096;
/// Times a directory being removed may be found refilled.
const REFILLED_MAX: u32 = 1000;

/// Removes whatever `path` names; what is not there is removed already.
///
/// # Errors
/// What cannot be removed; a mount in the tree is `CrossesDevices`.
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
/// # Errors
/// As [`remove_tree_at`].
pub fn remove_tree(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    match remove_entry(parent, name, AtFlags::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    let top = open_dir(parent, name)?;
    let mut moved = 0u64;
    let mut refilled = 0;
    loop {
        let children = children(top.as_fd(), BATCH)?;
        if children.is_empty() {
            match remove_entry(parent, name, AtFlags::REMOVEDIR) {
                // Somebody still puts something in: a helper that outlives its daemon a moment.
                Err(Errno::NOTEMPTY) if refilled < REFILLED_MAX => refilled += 1,
                other => return other,
            }
        }
        for (child, is_dir) in children {
            if !is_dir {
                remove_entry(top.as_fd(), &child, AtFlags::empty())?;
                continue;
            }
            empty(top.as_fd(), &child, &mut moved)?;
            match remove_entry(top.as_fd(), &child, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) if refilled < REFILLED_MAX => refilled += 1,
                other => other?,
            }
        }
    }
}

/// Takes everything out of a directory of `top`; directories in it go up into `top` unless they are empty.
fn empty(top: BorrowedFd<'_>, name: &CStr, moved: &mut u64) -> rustix::io::Result<()> {
    let dir = open_dir(top, name)?;
    loop {
        let children = children(dir.as_fd(), BATCH)?;
        if children.is_empty() {
            return Ok(());
        }
        for (child, is_dir) in children {
            if !is_dir {
                remove_entry(dir.as_fd(), &child, AtFlags::empty())?;
            } else if unlinkat(&dir, &child, AtFlags::REMOVEDIR).is_err() {
                lift(dir.as_fd(), &child, top, moved)?;
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
        let rename = || rustix::fs::renameat_with(from, name, top, &free, RenameFlags::NOREPLACE);
        match rename() {
            Err(Errno::EXIST) => continue,
            // A file system without RENAME_NOREPLACE: rename onto a non-empty directory fails anyway.
            Err(Errno::INVAL) => return renameat(from, name, top, &free),
            Err(Errno::PERM | Errno::ACCESS) if make_mutable(from, name) => return rename(),
            // How the kernel names a mount that is in the way.
            Err(Errno::BUSY) => return Err(Errno::XDEV),
            other => return other,
        }
    }
}

/// A privileged container may have made a file immutable, or its directory.
fn remove_entry(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> rustix::io::Result<()> {
    match unlinkat(dir, name, flags) {
        Err(Errno::PERM) if make_mutable(dir, name) => unlinkat(dir, name, flags),
        Err(Errno::BUSY) => Err(Errno::XDEV),
        other => other,
    }
}

/// Clears the flags of a file or directory, and of the directory it is in, that forbid its removal. False if there
/// were none.
fn make_mutable(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    let forbid = IFlags::IMMUTABLE | IFlags::APPEND;
    let clear = |fd: BorrowedFd<'_>| {
        let flags = rustix::fs::ioctl_getflags(fd);
        flags.is_ok_and(|flags| {
            flags.intersects(forbid) && rustix::fs::ioctl_setflags(fd, flags - forbid).is_ok()
        })
    };
    let mut cleared = clear(dir);
    // A device or fifo is not opened; the flags are for files and directories.
    let kind = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .map(|stat| FileType::from_raw_mode(stat.st_mode));
    if matches!(kind, Ok(FileType::RegularFile | FileType::Directory)) {
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        cleared |= openat(dir, name, how, Mode::empty()).is_ok_and(|fd| clear(fd.as_fd()));
    }
    cleared
}

fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(parent, name, flags, Mode::empty(), resolve)
}

/// What is in a directory, but for itself and its parent.
pub(crate) fn entries(
    dir: impl AsFd,
) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<DirEntry>>> {
    let is_dots = |entry: &DirEntry| matches!(entry.file_name().to_bytes(), b"." | b"..");
    let all = Dir::read_from(dir)?;
    Ok(all.filter(move |entry| !entry.as_ref().is_ok_and(is_dots)))
}

/// The first entries of a directory, and which of them are directories.
pub(crate) fn children(
    dir: BorrowedFd<'_>,
    at_most: usize,
) -> rustix::io::Result<Vec<(CString, bool)>> {
    let mut found = Vec::new();
    for entry in entries(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_dir = match entry.file_type() {
            FileType::Unknown => {
                let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            }
            kind => kind == FileType::Directory,
        };
        found.push((name.to_owned(), is_dir));
        if found.len() >= at_most {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
    fn a_directory_with_more_entries_than_are_read_at_a_time_is_emptied() {
        let tmp = tempfile::tempdir().unwrap();
        let top = tmp.path().join("top");
        for dir in ["a", "b"] {
            fs::create_dir_all(top.join(dir)).unwrap();
            for n in 0..=BATCH {
                fs::write(top.join(format!("{dir}/{n}")), "").unwrap();
            }
        }
        remove_tree_at(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn what_is_mounted_in_a_tree_stays_whole() {
        let tmp = tempfile::tempdir().unwrap();
        let (kept, top) = (tmp.path().join("kept"), tmp.path().join("top"));
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        // The same file system: only the mount tells.
        rustix::mount::mount_bind(&kept, top.join("a/b")).unwrap();
        let removed = remove_tree_at(&top);
        let there = kept.join("file").exists();
        let place = if top.join("a/b").exists() {
            "a/b"
        } else {
            ".removed.1"
        };
        rustix::mount::unmount(top.join(place), rustix::mount::UnmountFlags::DETACH).unwrap();
        assert!(there, "the mount was entered");
        assert_eq!(removed.unwrap_err().kind(), io::ErrorKind::CrossesDevices);
        remove_tree_at(&top).unwrap();
    }
}
