//! Removes trees of untrusted shape: the only place that deletes a directory with its content.
//!
//! `walk.rs` walks, with the names of the directories it is in. A directory deeper than the open
//! ones is first moved up into the top and handled there, so that memory is bounded for every
//! depth. No symlink is followed and no mount entered: a mount is an error, and keeps its content.

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
    AtFlags, FileType, IFlags, Mode, OFlags, RenameFlags, ResolveFlags, openat, openat2, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;

use crate::walk::{At, KEPT_OPEN, Mounts, Then, Visitor, Way, walk_again};

/// Limit for finding a directory refilled during its removal.
const REFILLED_MAX: u32 = 1000;

/// Removes the tree at `path`; a missing one is fine.
///
/// # Errors
/// An entry cannot be removed; a mount in the tree is `CrossesDevices`.
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

/// Removes `name` below `parent`, with its content.
///
/// # Errors
/// As [`remove_tree_at`].
pub fn remove_tree(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    match remove_entry(parent, name, AtFlags::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    let mut way = Way::new(open_dir(parent, name)?, Mounts::Refuse)?;
    let mut removal = Removal::default();
    let mut refilled = 0;
    loop {
        let moved = removal.moved;
        walk_again(&mut way, &mut removal)?;
        match remove_entry(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY) if removal.moved > moved => {}
            // Someone still adds entries: a helper that briefly outlives its daemon.
            Err(Errno::NOTEMPTY) if refilled < REFILLED_MAX => refilled += 1,
            other => return other,
        }
    }
}

/// Empties a directory.
#[derive(Default)]
struct Removal {
    /// Directories that the walk is in, except the top.
    names: Vec<CString>,
    moved: u64,
}

impl Visitor for Removal {
    type Error = Errno;

    fn entry(&mut self, at: &At<'_>, name: &CStr, kind: FileType) -> rustix::io::Result<Then> {
        let flags = match kind {
            FileType::Directory => AtFlags::REMOVEDIR,
            _ => AtFlags::empty(),
        };
        match remove_entry(at.dir, name, flags) {
            Err(Errno::NOENT) => Ok(Then::Pass),
            Err(Errno::NOTEMPTY) if at.depth + 1 < KEPT_OPEN => Ok(Then::Enter),
            Err(Errno::NOTEMPTY) => {
                self.lift(at, name)?;
                Ok(Then::Pass)
            }
            other => other.map(|()| Then::Pass),
        }
    }

    fn enter(&mut self, name: &CStr) -> rustix::io::Result<()> {
        self.names.push(name.to_owned());
        Ok(())
    }

    fn back(&mut self, at: &At<'_>) -> rustix::io::Result<()> {
        let name = self.names.pop().ok_or(Errno::STALE)?;
        match remove_entry(at.dir, &name, AtFlags::REMOVEDIR) {
            // Refilled, or not fully listed: the top cannot be removed then, and the walk repeats.
            Ok(()) | Err(Errno::NOTEMPTY | Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    fn passed_over(&mut self, why: Errno) -> rustix::io::Result<()> {
        match why {
            Errno::NOENT => Ok(()),
            _ => Err(why),
        }
    }
}

impl Removal {
    /// Moves a directory up into the top, under a free name.
    fn lift(&mut self, from: &At<'_>, name: &CStr) -> rustix::io::Result<()> {
        loop {
            self.moved += 1;
            let free = format!(".removed.{}", self.moved);
            let rename = || {
                rustix::fs::renameat_with(from.dir, name, from.top, &free, RenameFlags::NOREPLACE)
            };
            match rename() {
                Err(Errno::EXIST) => continue,
                // Without RENAME_NOREPLACE: a rename onto a non-empty directory fails anyway.
                Err(Errno::INVAL) => return renameat(from.dir, name, from.top, &free),
                Err(Errno::PERM | Errno::ACCESS) if make_mutable(from.dir, name) => {
                    return rename();
                }
                // The kernel's error for a mount in the way.
                Err(Errno::BUSY) => return Err(Errno::XDEV),
                other => return other,
            }
        }
    }
}

/// Removes an entry, even if a privileged container made it or its directory immutable.
fn remove_entry(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> rustix::io::Result<()> {
    match unlinkat(dir, name, flags) {
        Err(Errno::PERM) if make_mutable(dir, name) => unlinkat(dir, name, flags),
        Err(Errno::BUSY) => Err(Errno::XDEV),
        other => other,
    }
}

/// Clears the flags of an entry and its directory that forbid removal. False if there are none.
fn make_mutable(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    let forbid = IFlags::IMMUTABLE | IFlags::APPEND;
    let clear = |fd: BorrowedFd<'_>| {
        let flags = rustix::fs::ioctl_getflags(fd);
        flags.is_ok_and(|flags| {
            flags.intersects(forbid) && rustix::fs::ioctl_setflags(fd, flags - forbid).is_ok()
        })
    };
    let mut cleared = clear(dir);
    // Devices and FIFOs are not opened; only files and directories have these flags.
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
            for n in 0..=5000 {
                fs::write(top.join(format!("{dir}/{n}")), "").unwrap();
            }
        }
        remove_tree_at(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn a_mount_in_a_tree_keeps_its_content() {
        let tmp = tempfile::tempdir().unwrap();
        let (kept, top) = (tmp.path().join("kept"), tmp.path().join("top"));
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        // The same file system: only the mount differs.
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
