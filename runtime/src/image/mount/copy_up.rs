//! What a view has in a directory, copied out of it: the first content of an image's `VOLUME`s (CRI-129).

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::attributes::{copy_attributes, times};
use super::view::{Found, Merged, View, step};
use crate::image::fsutil::{self, data_from, is, open_dir, open_file};
use crate::remove::entries;

/// Entries copied up for one container.
const COPY_MAX: usize = 1_000_000;

impl View {
    /// Copies what the view has in the directory at `path` into `into`, which exists and is empty,
    /// with owners, modes, attributes, times and holes. Nothing there, or no directory, is fine.
    pub(crate) fn copy_up(
        &self,
        path: &Path,
        into: &Path,
        budget: &mut CopyBudget,
    ) -> io::Result<()> {
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
                for entry in entries(dir)? {
                    let entry = entry?;
                    let name = entry.file_name();
                    if is_in(&from[..at], name)? {
                        continue;
                    }
                    match step(&from, name)? {
                        None => {}
                        Some(Found::Dir(_)) => {
                            budget.entry()?;
                            rustix::fs::mkdirat(&to, name, Mode::RWXU)?;
                            todo.push(Rc::new(Node::below(&node, name)));
                        }
                        Some(Found::Other(shown)) => {
                            budget.entry()?;
                            copy_entry(shown.dir(), &shown.stat, to.as_fd(), name, budget)?;
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
}

/// What may still be copied up for one container.
#[derive(Debug)]
pub(crate) struct CopyBudget {
    entries: usize,
    bytes: u64,
    max_bytes: u64,
}

impl CopyBudget {
    pub(crate) fn new(max_bytes: u64) -> Self {
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
        match fsutil::stat(dir, name) {
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

#[cfg(test)]
#[path = "copy_up_tests.rs"]
mod tests;
