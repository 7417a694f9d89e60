//! Looks into a container's root without mounting it: resolves paths through upper and lower trees
//! as overlayfs would show them, whiteouts and opaque directories respected, symlinks kept inside.
//!
//! A directory of the view is a stack of directories, topmost first; a name is looked up from the
//! top until something hides what is below.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Uid};
use rustix::io::Errno;

use super::attributes::{copy_attributes, times};

/// Symlinks followed in one look-up; the kernel's own limit.
const LINKS_MAX: usize = 40;
/// Components walked in one look-up, those of symlinks included.
const STEPS_MAX: usize = 4096;
/// Entries copied up for one container.
const COPY_MAX: usize = 1_000_000;

/// Directories shown as one, topmost first.
type Merged = Rc<Vec<OwnedFd>>;

/// Kind of file at a path.
enum Found {
    Dir(Merged),
    /// Anything else, by name in the directory that shows it.
    Other {
        dir: Merged,
        at: usize,
        name: CString,
        stat: Stat,
    },
}

/// The trees of a container's root, topmost (the upper one) first.
pub struct View {
    root: Merged,
}

impl View {
    pub fn open(trees: &[PathBuf]) -> io::Result<Self> {
        let mut root = Vec::new();
        for tree in trees {
            root.push(OwnedFd::from(File::open(tree)?));
        }
        Ok(Self {
            root: Rc::new(root),
        })
    }

    /// The text of a regular file, symlinks followed inside the view. None if there is no such file;
    /// an error if it is something else, longer than `max`, or not UTF-8.
    pub fn text(&self, path: &Path, max: u64) -> io::Result<Option<String>> {
        let (dir, at, name) = match self.find(path.as_os_str().as_encoded_bytes())? {
            None => return Ok(None),
            Some(Found::Other {
                dir,
                at,
                name,
                stat,
            }) if is(&stat, FileType::RegularFile) => (dir, at, name),
            Some(_) => return Err(io::Error::other("is not a regular file")),
        };
        let file = open_file(dir[at].as_fd(), &name)?;
        let mut bytes = Vec::new();
        file.take(max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max {
            return Err(io::Error::other(format!("is longer than {max} bytes")));
        }
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| io::Error::other("is not UTF-8"))
    }

    /// Copies what the view has in the directory at `path` into `into`, which exists and is empty,
    /// with owners, modes, attributes, times and holes. Nothing there, or no directory, is fine.
    pub fn copy_up(&self, path: &Path, into: &Path, budget: &mut CopyBudget) -> io::Result<()> {
        let Some(Found::Dir(from)) = self.find(path.as_os_str().as_encoded_bytes())? else {
            return Ok(());
        };
        let into: OwnedFd = File::open(into)?.into();
        // Directories are known by their names and opened one at a time: a hostile image has more of
        // them than there are descriptors.
        let mut todo = vec![Rc::new(Node::default())];
        while let Some(node) = todo.pop() {
            let path = node.path();
            let Some(from) = descend(&from, &path)? else {
                continue;
            };
            let to = open_below(&into, &path)?;
            for (at, dir) in from.iter().enumerate() {
                for entry in Dir::read_from(dir)? {
                    let entry = entry?;
                    let name = entry.file_name();
                    if name == c"." || name == c".." || is_in(&from[..at], name)? {
                        continue;
                    }
                    match step(&from, name)? {
                        None => {}
                        Some(Found::Dir(_)) => {
                            budget.entry()?;
                            rustix::fs::mkdirat(&to, name, Mode::RWXU)?;
                            todo.push(Rc::new(Node::below(&node, name)));
                        }
                        Some(Found::Other { dir, at, stat, .. }) => {
                            budget.entry()?;
                            copy_entry(dir[at].as_fd(), &stat, to.as_fd(), name, budget)?;
                        }
                    }
                }
            }
            if let Some(top) = from.first() {
                // After its entries, for the time's sake; those of directories in it come later,
                // but only make them newer inside themselves.
                copy_attributes(top, &to)?;
            }
        }
        Ok(())
    }

    /// Whether the view has something at exactly this path, no symlink followed.
    pub fn has(&self, path: &[u8]) -> io::Result<bool> {
        let mut here = self.root.clone();
        let mut parts = components(path).peekable();
        while let Some(name) = parts.next() {
            let name = CString::new(name).map_err(io::Error::other)?;
            match step(&here, &name)? {
                None => return Ok(false),
                Some(Found::Dir(dir)) => here = dir,
                Some(Found::Other { .. }) => return Ok(parts.peek().is_none()),
            }
        }
        Ok(true)
    }

    fn find(&self, path: &[u8]) -> io::Result<Option<Found>> {
        let mut todo: VecDeque<Vec<u8>> = components(path).collect();
        let mut stack: Vec<Merged> = vec![self.root.clone()];
        let mut links = 0;
        let mut steps = 0;
        while let Some(name) = todo.pop_front() {
            steps += 1;
            if steps > STEPS_MAX {
                return Err(Errno::NAMETOOLONG.into());
            }
            if name == b".." {
                stack.truncate(stack.len().saturating_sub(1).max(1));
                continue;
            }
            let here = stack.last().unwrap_or(&self.root).clone();
            let name = CString::new(name).map_err(io::Error::other)?;
            match step(&here, &name)? {
                None => return Ok(None),
                Some(Found::Dir(dir)) => stack.push(dir),
                Some(Found::Other {
                    dir,
                    at,
                    name,
                    stat,
                }) if is(&stat, FileType::Symlink) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = rustix::fs::readlinkat(&dir[at], &name, Vec::new())?;
                    if target.as_bytes().starts_with(b"/") {
                        stack.truncate(1);
                    }
                    for part in components(target.as_bytes()).rev() {
                        todo.push_front(part);
                    }
                }
                Some(other) if todo.is_empty() => return Ok(Some(other)),
                Some(_) => return Ok(None),
            }
        }
        Ok(stack.pop().map(Found::Dir))
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|b| *b == b'/')
        .filter(|c| !c.is_empty() && *c != b".")
        .map(<[u8]>::to_vec)
}

/// Looks `name` up in a merged directory.
fn step(here: &Merged, name: &CStr) -> io::Result<Option<Found>> {
    let mut dirs = Vec::new();
    for (at, dir) in here.iter().enumerate() {
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            other => other?,
        };
        if is(&stat, FileType::Directory) {
            let fd = open_dir(dir.as_fd(), name)?;
            let opaque = is_opaque(&fd)?;
            dirs.push(fd);
            if opaque {
                break;
            }
        } else if dirs.is_empty() && !is_whiteout(&stat) {
            let (dir, name) = (here.clone(), name.to_owned());
            return Ok(Some(Found::Other {
                dir,
                at,
                name,
                stat,
            }));
        } else {
            break;
        }
    }
    Ok((!dirs.is_empty()).then(|| Found::Dir(Rc::new(dirs))))
}

/// What may still be copied up for one container.
#[derive(Debug)]
pub struct CopyBudget {
    entries: usize,
    bytes: u64,
    max_bytes: u64,
}

impl CopyBudget {
    pub fn new(max_bytes: u64) -> Self {
        Self {
            entries: COPY_MAX,
            bytes: max_bytes,
            max_bytes,
        }
    }

    fn entry(&mut self) -> io::Result<()> {
        let left = self.entries.checked_sub(1);
        self.entries =
            left.ok_or_else(|| io::Error::other(format!("more than {COPY_MAX} files")))?;
        Ok(())
    }

    fn take(&mut self, bytes: u64) -> io::Result<()> {
        let max = self.max_bytes;
        let refuse = || io::Error::other(format!("more than {max} bytes (image.max_volume_bytes)"));
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(refuse)?;
        Ok(())
    }
}

/// A directory by its names from the top down.
#[derive(Default)]
struct Node(Option<(Rc<Node>, CString)>);

impl Node {
    fn below(parent: &Rc<Node>, name: &CStr) -> Self {
        Self(Some((parent.clone(), name.to_owned())))
    }

    fn path(&self) -> Vec<CString> {
        let mut names = Vec::new();
        let mut here = self;
        while let Some((parent, name)) = &here.0 {
            names.push(name.clone());
            here = parent;
        }
        names.reverse();
        names
    }
}

impl Drop for Node {
    /// One after the other: the last directory of a deep tree lets go of all above it.
    fn drop(&mut self) {
        let mut next = self.0.take();
        while let Some((parent, _)) = next {
            next = Rc::into_inner(parent).and_then(|mut node| node.0.take());
        }
    }
}

/// The directory that these names lead to.
fn descend(from: &Merged, names: &[CString]) -> io::Result<Option<Merged>> {
    let mut here = from.clone();
    for name in names {
        match step(&here, name)? {
            Some(Found::Dir(dir)) => here = dir,
            _ => return Ok(None),
        }
    }
    Ok(Some(here))
}

fn open_below(dir: &OwnedFd, names: &[CString]) -> io::Result<OwnedFd> {
    let mut here = dir.try_clone()?;
    for name in names {
        here = open_dir(here.as_fd(), name)?;
    }
    Ok(here)
}

/// Whether one of these directories has the name.
fn is_in(dirs: &[OwnedFd], name: &CStr) -> io::Result<bool> {
    for dir in dirs {
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            other => return Ok(other.map(|_| true)?),
        }
    }
    Ok(false)
}

fn copy_entry(
    from: BorrowedFd<'_>,
    stat: &Stat,
    to: BorrowedFd<'_>,
    name: &CStr,
    budget: &mut CopyBudget,
) -> io::Result<()> {
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return copy_file(from, to, name, budget),
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(from, name, Vec::new())?;
            rustix::fs::symlinkat(&target, to, name)?;
        }
        FileType::Socket | FileType::Unknown => return Ok(()),
        kind => rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev)?,
    }
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if !is(stat, FileType::Symlink) {
        rustix::fs::chmodat(to, name, mode, AtFlags::empty())?;
    }
    Ok(rustix::fs::utimensat(
        to,
        name,
        &times(stat),
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

fn copy_file(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &CStr,
    budget: &mut CopyBudget,
) -> io::Result<()> {
    let source = open_file(from, name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let target = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
    let target = File::from(target);
    let size = source.metadata()?.len();
    let mut at = 0;
    while let Some((start, end)) = data_from(&source, at, size)? {
        budget.take(end - start)?;
        (&source).seek(io::SeekFrom::Start(start))?;
        (&target).seek(io::SeekFrom::Start(start))?;
        // In the kernel where the file system can; sharing blocks where it can do that.
        io::copy(&mut (&source).take(end - start), &mut &target)?;
        at = end;
    }
    target.set_len(size)?;
    Ok(copy_attributes(&source.into(), &target.into())?)
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

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

fn is_whiteout(stat: &Stat) -> bool {
    is(stat, FileType::CharacterDevice) && stat.st_rdev == 0
}

fn is_opaque(dir: &OwnedFd) -> io::Result<bool> {
    let mut value = [0u8; 1];
    match rustix::fs::fgetxattr(dir, "trusted.overlay.opaque", &mut value) {
        Ok(n) => Ok(n == 1 && value == *b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Never waits for the writer of a fifo put there meanwhile.
fn open_file(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).map(File::from)
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
