//! Makes the entries of one layer in a directory (CRI-441 to CRI-444).
//!
//! Runs in the unpack helper only: one thread, in a chroot whose root is the layer. Every path is
//! also resolved from the root's descriptor with `RESOLVE_IN_ROOT`, so that each of the two
//! barriers is enough. Lower layers are invisible here. Work that depends on them is left to the
//! daemon, by the report: attributes of implied directories, and opaque marks, for which the helper
//! also lacks a capability. One file, because all kinds of entries change the same state.

use std::collections::{BTreeSet, HashSet};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::limits::{REPORTED_MAX, TreeBounds};
use super::metadata::{PAGE, attributes, copy_sparsely, failed, metadata, owner, times};
use super::path::{CleanPath, Meaning, meaning};
use super::tarball::{Entry, Kind};
use crate::image::fsutil::{self, is};
use crate::remove::remove_tree;

/// Symlinks followed while a parent directory is made; the kernel's own limit.
const LINKS_MAX: u32 = 40;

fn too_many() -> io::Error {
    io::Error::other("more files than are left (image.max_image_files, or the disk's inodes)")
}

/// Result of an unpack, with the work that is left for the daemon.
#[derive(Debug, Default)]
pub struct Applied {
    /// Directories that the archive only implies, and the root unless it has an entry.
    pub implied: BTreeSet<CleanPath>,
    /// Directories that hide the content of lower layers.
    pub opaque: BTreeSet<CleanPath>,
    /// Whiteouts, except those that an entry of the layer has replaced.
    pub whiteouts: HashSet<CleanPath>,
    pub inodes: u64,
    pub disk_bytes: u64,
}

pub struct Applier {
    root: OwnedFd,
    /// The directory of the last entry; entries come in order of directories.
    last: Option<(CleanPath, OwnedFd)>,
    /// Its depth in the tree.
    depth: usize,
    /// Times of directories, set last because making entries changes them.
    dir_times: Vec<(CleanPath, Timestamps)>,
    /// Remaining entries.
    entries_left: u64,
    limits: TreeBounds,
    pub applied: Applied,
}

impl Applier {
    pub fn new(root: OwnedFd, limits: TreeBounds) -> Self {
        let mut applied = Applied {
            inodes: 1,
            disk_bytes: PAGE,
            ..Applied::default()
        };
        applied.implied.insert(CleanPath::default());
        Self {
            root,
            last: None,
            depth: 0,
            dir_times: Vec::new(),
            entries_left: limits.files,
            limits,
            applied,
        }
    }

    /// Makes one entry; `data`: a file's content.
    pub fn apply(&mut self, entry: &Entry, data: &mut impl Read) -> Result<()> {
        self.entries_left = self.entries_left.checked_sub(1).ok_or_else(too_many)?;
        let reported =
            self.applied.implied.len() + self.applied.opaque.len() + self.applied.whiteouts.len();
        if self.applied.inodes > self.limits.files {
            return Err(too_many());
        }
        if reported > REPORTED_MAX {
            return Err(io::Error::other(format!(
                "more than {REPORTED_MAX} whiteouts and directories without an entry"
            )));
        }
        let path = CleanPath::new(&entry.path).map_err(io::Error::other)?;
        let Some((dir, name)) = path.split() else {
            return self.root_entry(entry);
        };
        match meaning(name).map_err(io::Error::other)? {
            Meaning::Ignored => Ok(()),
            Meaning::Opaque => {
                self.enter(&dir)?;
                self.applied.opaque.insert(dir);
                Ok(())
            }
            Meaning::Whiteout(hidden) => self.whiteout(&dir, hidden),
            Meaning::Entry => {
                let name = CString::new(name).map_err(io::Error::other)?;
                self.enter(&dir)?;
                self.make(entry, &path, &name, data)
            }
        }
    }

    /// Sets the directories' times and returns the result.
    pub fn finish(mut self) -> Result<Applied> {
        self.last = None;
        for (path, times) in self.dir_times.iter().rev() {
            // A later entry of the same layer may have replaced it.
            if let Ok(dir) = self.open_dir(path) {
                rustix::fs::futimens(&dir, times).map_err(failed("set a directory's times"))?;
            }
        }
        Ok(self.applied)
    }

    fn root_entry(&mut self, entry: &Entry) -> Result<()> {
        if entry.kind != Kind::Dir {
            return Err(io::Error::other(
                "the root of a layer can only be a directory",
            ));
        }
        self.applied.implied.remove(&CleanPath::default());
        let root = self.open_dir(&CleanPath::default())?;
        self.dir_metadata(entry, root, CleanPath::default())
    }

    /// Hides `name` of lower layers. The layer's own entry stays: a whiteout concerns lower layers
    /// only.
    fn whiteout(&mut self, dir: &CleanPath, name: &[u8]) -> Result<()> {
        let path = dir.join(name);
        let name = CString::new(name).map_err(io::Error::other)?;
        self.enter(dir)?;
        if let Some(stat) = self.stat(&name)? {
            if is(&stat, FileType::Directory) {
                self.applied.opaque.insert(path);
            }
            return Ok(());
        }
        let kind = FileType::CharacterDevice;
        let none = rustix::fs::makedev(0, 0);
        rustix::fs::mknodat(self.here(), &name, kind, Mode::empty(), none)
            .map_err(failed("make a whiteout"))?;
        self.applied.whiteouts.insert(path);
        self.applied.inodes += 1;
        Ok(())
    }

    fn make(
        &mut self,
        entry: &Entry,
        path: &CleanPath,
        name: &CString,
        data: &mut impl Read,
    ) -> Result<()> {
        let there = self.stat(name)?;
        if entry.kind == Kind::Dir {
            return self.make_dir(entry, path, name, there);
        }
        if entry.kind == Kind::Hardlink {
            return self.make_hardlink(entry, path, name, there);
        }
        self.clear(path, name, there)?;
        self.applied.inodes += 1;
        let mode = Mode::from_raw_mode(entry.mode);
        match entry.kind {
            Kind::File => return self.make_file(entry, name, data),
            Kind::Symlink => {
                if entry.link.is_empty() {
                    return Err(io::Error::other("a symlink without a target"));
                }
                rustix::fs::symlinkat(&entry.link[..], self.here(), name)
                    .map_err(failed("make a symlink"))?;
            }
            Kind::Fifo => self.make_node(entry, name, FileType::Fifo, "make a fifo")?,
            Kind::Char => {
                self.make_node(entry, name, FileType::CharacterDevice, "make a device")?;
            }
            Kind::Block => self.make_node(entry, name, FileType::BlockDevice, "make a device")?,
            Kind::Dir | Kind::Hardlink => return Err(io::ErrorKind::InvalidInput.into()),
        }
        // These have no descriptor: by name, in a directory that only this process changes.
        let here = self.here();
        let (uid, gid) = owner(entry);
        rustix::fs::chownat(here, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("set the owner"))?;
        // By name in the current directory, which is `here()`.
        attributes(entry, true, |key, value| {
            rustix::fs::lsetxattr(name, key, value, XattrFlags::empty())
        })?;
        if entry.kind != Kind::Symlink {
            rustix::fs::chmodat(here, name, mode, AtFlags::empty())
                .map_err(failed("set the mode"))?;
        }
        rustix::fs::utimensat(here, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("set the times"))
    }

    fn make_dir(
        &mut self,
        entry: &Entry,
        path: &CleanPath,
        name: &CString,
        there: Option<Stat>,
    ) -> Result<()> {
        // Two directories are merged; anything else is replaced (CRI-442).
        if !there.is_some_and(|there| is(&there, FileType::Directory)) {
            self.clear(path, name, there)?;
            self.bound_depth(self.depth + 1)?;
            rustix::fs::mkdirat(self.here(), name, Mode::RWXU)
                .map_err(failed("make a directory"))?;
            self.applied.inodes += 1;
            self.applied.disk_bytes += PAGE;
        }
        self.applied.implied.remove(path);
        let dir = fsutil::open_dir(self.here(), name).map_err(failed("open a directory"))?;
        self.dir_metadata(entry, dir, path.clone())
    }

    fn dir_metadata(&mut self, entry: &Entry, dir: OwnedFd, path: CleanPath) -> Result<()> {
        metadata(entry, &dir)?;
        self.dir_times.push((path, times(entry)));
        Ok(())
    }

    fn make_file(&mut self, entry: &Entry, name: &CString, data: &mut impl Read) -> Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.here(), name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed("make a file"))?;
        let mut file = File::from(fd);
        self.applied.disk_bytes += copy_sparsely(data, &mut file, entry.size)?;
        metadata(entry, &file)?;
        rustix::fs::futimens(&file, &times(entry)).map_err(failed("set the times"))
    }

    /// Links to an entry of this layer. The last component of the target is not followed.
    fn make_hardlink(
        &mut self,
        entry: &Entry,
        path: &CleanPath,
        name: &CString,
        there: Option<Stat>,
    ) -> Result<()> {
        let target = CleanPath::new(&entry.link).map_err(io::Error::other)?;
        if target == *path {
            return Err(io::Error::other("a hard link to itself"));
        }
        let (dir, target) = target
            .split()
            .ok_or_else(|| io::Error::other("a hard link to the root"))?;
        let dir = self
            .open_dir(&dir)
            .map_err(|e| io::Error::new(e.kind(), format!("link target: {e}")))?;
        self.clear(path, name, there)?;
        rustix::fs::linkat(&dir, target, self.here(), name, AtFlags::empty())
            .map_err(failed("make a hard link"))
    }

    /// Removes the entry that a new one replaces.
    fn clear(&mut self, path: &CleanPath, name: &CString, there: Option<Stat>) -> Result<()> {
        let Some(there) = there else {
            return Ok(());
        };
        if self.applied.whiteouts.remove(path) {
            // The name in lower layers stays hidden: a file covers it, a directory needs a mark.
            self.applied.opaque.insert(path.clone());
        }
        if is(&there, FileType::Directory) {
            // A cached directory might be inside; the current one is its parent and stays.
            self.applied.implied.remove(path);
            self.applied.opaque.insert(path.clone());
        }
        remove_tree(self.here(), name).map_err(failed("replace an entry"))
    }

    /// Makes `dir` the current directory, with its missing parents.
    fn enter(&mut self, dir: &CleanPath) -> Result<()> {
        if self.last.as_ref().is_some_and(|(last, _)| last == dir) {
            return Ok(());
        }
        self.last = None;
        let fd = match self.open_dir(dir) {
            Ok(fd) => fd,
            Err(_) => {
                let mut links = LINKS_MAX;
                self.make_parents(dir, &mut links)?;
                self.open_dir(dir)?
            }
        };
        rustix::process::fchdir(&fd).map_err(failed("enter a directory"))?;
        // Links may have made the real path shorter.
        self.depth = match rustix::process::getcwd(Vec::new()) {
            Ok(path) if path.as_bytes() == b"/" => 0,
            Ok(path) => path.as_bytes().iter().filter(|b| **b == b'/').count(),
            Err(Errno::NAMETOOLONG) => usize::MAX - 1,
            Err(e) => return Err(failed("look where a directory is")(e)),
        };
        self.bound_depth(self.depth)?;
        self.last = Some((dir.clone(), fd));
        Ok(())
    }

    fn bound_depth(&self, depth: usize) -> Result<()> {
        let max = self.limits.depth;
        if depth <= max as usize {
            return Ok(());
        }
        let why = format!("more than {max} directories in each other (image.max_image_depth)");
        Err(io::Error::other(why))
    }

    /// Makes the missing directories of a path; follows symlinks of this layer inside it.
    fn make_parents(&mut self, dir: &CleanPath, links: &mut u32) -> Result<()> {
        for path in dir.prefixes() {
            if self.open_dir(&path).is_ok() {
                continue;
            }
            let Some((parent, name)) = path.split() else {
                continue;
            };
            let parent_fd = self.open_dir(&parent)?;
            let there = rustix::fs::statat(&parent_fd, name, AtFlags::SYMLINK_NOFOLLOW);
            match there.map(|s| FileType::from_raw_mode(s.st_mode)) {
                Ok(FileType::Symlink) => {
                    *links = links
                        .checked_sub(1)
                        .ok_or_else(|| failed("follow")(Errno::LOOP))?;
                    let target = rustix::fs::readlinkat(&parent_fd, name, Vec::new())
                        .map_err(failed("follow"))?;
                    let target = target.as_bytes();
                    let target = if target.starts_with(b"/") {
                        CleanPath::new(target)
                    } else {
                        CleanPath::new(&[parent.as_bytes(), b"/", target].concat())
                    };
                    self.make_parents(&target.map_err(io::Error::other)?, links)?;
                    continue;
                }
                Ok(_) if self.applied.whiteouts.remove(&path) => {
                    let name = CString::new(name).map_err(io::Error::other)?;
                    remove_tree(parent_fd.as_fd(), &name).map_err(failed("replace"))?;
                    self.applied.opaque.insert(path.clone());
                }
                Ok(_) => return Err(failed("make a parent directory")(Errno::NOTDIR)),
                Err(_) => {}
            }
            let mode = Mode::from_raw_mode(0o755);
            rustix::fs::mkdirat(&parent_fd, name, mode).map_err(failed("make a parent"))?;
            let (uid, gid) = (Some(Uid::ROOT), Some(Gid::ROOT));
            rustix::fs::chownat(&parent_fd, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed("set the owner"))?;
            self.applied.inodes += 1;
            self.applied.disk_bytes += PAGE;
            self.applied.implied.insert(path);
        }
        Ok(())
    }

    fn open_dir(&self, path: &CleanPath) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.root, path.for_open(), flags, Mode::empty(), resolve)
            .map_err(failed("open a directory"))
    }

    fn here(&self) -> BorrowedFd<'_> {
        let last = self.last.as_ref();
        last.map_or(self.root.as_fd(), |(_, fd)| fd.as_fd())
    }

    fn stat(&self, name: &CString) -> Result<Option<Stat>> {
        match fsutil::stat(self.here(), name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(failed("look at an entry")(e)),
        }
    }

    /// Makes a device or a fifo, whose device number is 0.
    fn make_node(
        &self,
        entry: &Entry,
        name: &CString,
        kind: FileType,
        step: &'static str,
    ) -> Result<()> {
        let mode = Mode::from_raw_mode(entry.mode);
        let device = rustix::fs::makedev(entry.device.0, entry.device.1);
        rustix::fs::mknodat(self.here(), name, kind, mode, device).map_err(failed(step))
    }
}
