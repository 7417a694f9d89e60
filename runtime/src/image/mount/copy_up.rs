//! Copies a directory out of a view of an image: the initial content of its `VOLUME`s (CRI-129).

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, openat2};
use rustix::io::Errno;

use super::attributes::{copy_attributes, times};
use crate::image::fsutil::{self, data_from, is, open_file};
use crate::walk::{At, Cut, IMAGE_DEPTH_MAX, Limits, Mounts, Then, Up, Visitor, Way, walk};

/// The most entries copied for one container.
const COPY_MAX: usize = 1_000_000;
/// A kubelet has given up the creation long before; the copy is removed with it.
const LIMIT: Duration = Duration::from_secs(600);
/// The most bytes of a file per copy call.
const PIECE: u64 = 64 << 20;

/// Copies the view's directory `path` to the empty `into`, with owners, modes, attributes, times
/// and holes. If `path` is not a directory, nothing is copied. Symlinks stay in the view.
pub(crate) fn copy_up(
    view: &OwnedFd,
    path: &Path,
    into: &Path,
    budget: &mut CopyBudget<'_>,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let from = match openat2(view, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        other => other?,
    };
    let limits = Limits {
        depth: IMAGE_DEPTH_MAX,
        until: Some(budget.until),
        is_over: budget.is_over,
        ..Limits::NONE
    };
    let to = Way::new(File::open(into)?.into(), Mounts::Refuse)?;
    match walk(from, Mounts::Refuse, &limits, &mut Copy { to, budget })? {
        None => Ok(()),
        Some(Cut::Over) => Err(given_up()),
        Some(Cut::Time | Cut::Entries) => Err(too_slow()),
    }
}

fn given_up() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "no caller waits any more")
}

fn too_slow() -> io::Error {
    let why = format!("not done after {} minutes", LIMIT.as_secs() / 60);
    io::Error::new(io::ErrorKind::TimedOut, why)
}

struct Copy<'a, 'b> {
    /// Destination of the walk's current directory.
    to: Way,
    budget: &'a mut CopyBudget<'b>,
}

impl Visitor for Copy<'_, '_> {
    type Error = io::Error;

    fn entry(&mut self, at: &At<'_>, name: &CStr, _: FileType) -> io::Result<Then> {
        self.budget.entry()?;
        let stat = fsutil::stat(at.dir, name)?;
        let to = self.to.here()?;
        if is(&stat, FileType::Directory) {
            rustix::fs::mkdirat(to, name, Mode::RWXU)?;
            return Ok(Then::Enter);
        }
        copy_entry(at.dir, &stat, to, name, self.budget)?;
        Ok(Then::Pass)
    }

    fn enter(&mut self, name: &CStr) -> io::Result<()> {
        Ok(self.to.down(name)?)
    }

    fn end(&mut self, dir: BorrowedFd<'_>) -> io::Result<()> {
        // After its entries, which would change the times.
        Ok(copy_attributes(dir, self.to.here()?)?)
    }

    fn back(&mut self, _: &At<'_>) -> io::Result<()> {
        match self.to.up() {
            Up::Parent => Ok(()),
            // Only this copy knows of it yet.
            Up::Elsewhere | Up::Top => Err(Errno::STALE.into()),
        }
    }

    fn passed_over(&mut self, why: Errno) -> io::Result<()> {
        Err(match why {
            Errno::NAMETOOLONG => {
                let why = format!("more than {IMAGE_DEPTH_MAX} directories in each other");
                io::Error::other(why)
            }
            why => why.into(),
        })
    }
}

/// The remaining budget of one container.
pub(crate) struct CopyBudget<'a> {
    entries: usize,
    bytes: u64,
    max_bytes: u64,
    until: Instant,
    /// Whether no caller waits any more.
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> CopyBudget<'a> {
    pub(crate) fn new(max_bytes: u64, is_over: &'a dyn Fn() -> bool) -> Self {
        Self {
            entries: COPY_MAX,
            bytes: max_bytes,
            max_bytes,
            until: Instant::now() + LIMIT,
            is_over,
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

    /// Checks time and caller between two pieces of a large file.
    fn go_on(&self) -> io::Result<()> {
        if (self.is_over)() {
            return Err(given_up());
        }
        if Instant::now() > self.until {
            Err(too_slow())
        } else {
            Ok(())
        }
    }
}

fn copy_entry(
    from: BorrowedFd<'_>,
    stat: &Stat,
    to: BorrowedFd<'_>,
    name: &CStr,
    budget: &mut CopyBudget<'_>,
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
    budget: &mut CopyBudget<'_>,
) -> io::Result<()> {
    let source = open_file(from, name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let target = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
    let target = File::from(target);
    let size = source.metadata()?.len();
    let mut at = 0;
    while let Some((start, end)) = data_from(&source, at, size)? {
        let end = end.min(start + PIECE);
        budget.take(end - start)?;
        budget.go_on()?;
        (&source).seek(io::SeekFrom::Start(start))?;
        (&target).seek(io::SeekFrom::Start(start))?;
        // In the kernel if the file system can; with shared blocks if it can.
        io::copy(&mut (&source).take(end - start), &mut &target)?;
        at = end;
    }
    target.set_len(size)?;
    Ok(copy_attributes(&source, &target)?)
}

#[cfg(test)]
#[path = "copy_up_tests.rs"]
mod tests;
