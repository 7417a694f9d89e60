//! The only walk over trees of images and containers: to count, copy, label and remove.
//!
//! An attacker chooses the depth and width of such a tree, and may change it concurrently. So
//! nothing here recurses, lists a directory or keeps a name per level:
//!
//! ```text
//! top … KEPT_OPEN levels down       open, until the walk ends
//! … between …                  24 bytes each: which directory it is, and how far it was read
//! the last KEPT_OPEN levels         open
//! ```
//!
//! `..` leads back to a level in between, and is checked to be the directory the walk came through.
//! If that was moved, the walk continues at the next open directory, and skips the rest of those in
//! between. Each directory is opened once from its parent and at most once on the way back: a walk
//! makes as many system calls as the tree has entries, whatever its shape. No symlink is followed.

use std::{
    collections::VecDeque,
    ffi::CStr,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use rustix::{
    fs::{
        AtFlags, Dir, DirEntry, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2,
        statat,
    },
    io::Errno,
};

/// Open directories from the top down, and as many at the walk's position.
pub(crate) const KEPT_OPEN: usize = 16;
/// Limit of a walk's depth: 5 MB of state.
pub(crate) const DEPTH_MAX: usize = 200_000;
/// Limit of the depth in an image's tree: twice the largest `image.max_image_depth`.
pub(crate) const IMAGE_DEPTH_MAX: usize = 4096;
/// Entries between two checks of the clock.
const CHECKED: u64 = 64;

/// Whether a walk enters mounts in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounts {
    Enter,
    /// A mount is [`Errno::XDEV`].
    Refuse,
}

/// A directory's device and inode.
type Identity = (u64, u64);

struct Open {
    dir: Dir,
    id: Identity,
    /// The position to continue reading at.
    next: i64,
}

struct Closed {
    id: Identity,
    next: i64,
}

/// The directories from a tree's top to the current one.
pub(crate) struct Way {
    top: Vec<Open>,
    between: Vec<Closed>,
    near: VecDeque<Open>,
    mounts: Mounts,
}

/// The result of [`Way::up`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Up {
    Parent,
    /// The parent was moved; this is the next known directory above.
    Elsewhere,
    Top,
}

impl Way {
    pub(crate) fn new(top: OwnedFd, mounts: Mounts) -> rustix::io::Result<Self> {
        Ok(Self {
            top: vec![Open::new(top)?],
            between: Vec::new(),
            near: VecDeque::new(),
            mounts,
        })
    }

    /// Directories above the current one.
    pub(crate) fn depth(&self) -> usize {
        self.top.len() + self.between.len() + self.near.len() - 1
    }

    pub(crate) fn here(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        let here = self.near.back().or(self.top.last());
        here.ok_or(Errno::BADF)?.dir.fd()
    }

    pub(crate) fn down(&mut self, name: &CStr) -> rustix::io::Result<()> {
        let open = Open::new(open_dir(self.here()?, name, self.mounts)?)?;
        if self.top.len() < KEPT_OPEN && self.depth() + 1 == self.top.len() {
            self.top.push(open);
            return Ok(());
        }
        self.near.push_back(open);
        if self.near.len() > KEPT_OPEN
            && let Some(Open { id, next, .. }) = self.near.pop_front()
        {
            self.between.push(Closed { id, next });
        }
        Ok(())
    }

    pub(crate) fn up(&mut self) -> Up {
        let Some(left) = self.near.pop_back() else {
            if self.top.len() == 1 {
                return Up::Top;
            }
            self.top.pop();
            return Up::Parent;
        };
        if self.near.is_empty()
            && let Some(parent) = self.between.pop()
        {
            match left.parent(&parent) {
                Ok(open) => self.near.push_back(open),
                Err(_) => {
                    self.between.clear();
                    return Up::Elsewhere;
                }
            }
        }
        Up::Parent
    }

    /// The next unread entry of this directory.
    fn read(&mut self) -> rustix::io::Result<Option<DirEntry>> {
        let here = self.near.back_mut().or(self.top.last_mut());
        let here = here.ok_or(Errno::BADF)?;
        while let Some(entry) = here.dir.read() {
            let entry = entry?;
            here.next = entry.offset();
            if !is_dots(&entry) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn rewind(&mut self) {
        if let [top] = &mut self.top[..] {
            top.dir.rewind();
        }
    }
}

impl Open {
    fn new(dir: OwnedFd) -> rustix::io::Result<Self> {
        let stat = fstat(&dir)?;
        Ok(Self {
            dir: Dir::new(dir)?,
            id: (stat.st_dev, stat.st_ino),
            next: 0,
        })
    }

    /// Opens its parent, if that is still `known`.
    fn parent(&self, known: &Closed) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = openat(self.dir.fd()?, c"..", flags, Mode::empty())?;
        let mut parent = Self::new(parent)?;
        if parent.id != known.id {
            return Err(Errno::STALE);
        }
        parent.dir.seek(known.next)?;
        parent.next = known.next;
        Ok(parent)
    }
}

fn open_dir(dir: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    if mounts == Mounts::Refuse {
        resolve |= ResolveFlags::NO_XDEV;
    }
    openat2(dir, name, flags, Mode::empty(), resolve)
}

fn is_dots(entry: &DirEntry) -> bool {
    matches!(entry.file_name().to_bytes(), b"." | b"..")
}

/// A visitor's decision on a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Enter,
    Pass,
}

/// The position of a visitor.
pub(crate) struct At<'a> {
    pub dir: BorrowedFd<'a>,
    pub top: BorrowedFd<'a>,
    /// Directories above this one.
    pub depth: usize,
}

/// The actions of a walk. An error ends the walk.
pub(crate) trait Visitor {
    type Error: From<Errno>;

    /// Called once for each entry. [`Then::Enter`] is for directories.
    fn entry(&mut self, at: &At<'_>, name: &CStr, kind: FileType) -> Result<Then, Self::Error>;

    /// The directory `name` is open; its entries follow.
    fn enter(&mut self, _name: &CStr) -> Result<(), Self::Error> {
        Ok(())
    }

    /// All entries of a directory were visited; last for the top.
    fn end(&mut self, _dir: BorrowedFd<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The walk returned to the parent of the directory of [`Visitor::end`].
    fn back(&mut self, _at: &At<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A directory's content is skipped: removed or moved ([`is_gone`]), too deep (`NAMETOOLONG`),
    /// or unreadable.
    fn passed_over(&mut self, why: Errno) -> Result<(), Self::Error>;
}

/// Whether an entry was removed, replaced, or moved out of the tree.
pub(crate) fn is_gone(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE
    )
}

/// Limits of a walk.
pub(crate) struct Limits<'a> {
    pub entries: u64,
    pub depth: usize,
    pub until: Option<Instant>,
    /// Checked now and then: whether the caller has left.
    pub is_over: &'a dyn Fn() -> bool,
}

impl Limits<'_> {
    pub(crate) const NONE: Limits<'static> = Limits {
        entries: u64::MAX,
        depth: DEPTH_MAX,
        until: None,
        is_over: &|| false,
    };

    fn reached(&self, entries: u64) -> Option<Cut> {
        if entries >= self.entries {
            return Some(Cut::Entries);
        }
        if !entries.is_multiple_of(CHECKED) {
            return None;
        }
        if self.until.is_some_and(|until| Instant::now() > until) {
            return Some(Cut::Time);
        }
        (self.is_over)().then_some(Cut::Over)
    }
}

/// The reason why a walk ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Entries,
    Time,
    /// Its caller has left.
    Over,
}

/// Walks over the directory `top`; `None` if to its end.
pub(crate) fn walk<V: Visitor>(
    top: OwnedFd,
    mounts: Mounts,
    limits: &Limits<'_>,
    visitor: &mut V,
) -> Result<Option<Cut>, V::Error> {
    walk_way(&mut Way::new(top, mounts)?, limits, visitor)
}

/// Repeats [`walk`] from the same top.
pub(crate) fn walk_again<V: Visitor>(way: &mut Way, visitor: &mut V) -> Result<(), V::Error> {
    way.rewind();
    walk_way(way, &Limits::NONE, visitor).map(drop)
}

fn walk_way<V: Visitor>(
    way: &mut Way,
    limits: &Limits<'_>,
    visitor: &mut V,
) -> Result<Option<Cut>, V::Error> {
    let mut entries = 0;
    loop {
        if let Some(cut) = limits.reached(entries) {
            return Ok(Some(cut));
        }
        let entry = match way.read() {
            Ok(entry) => entry,
            Err(error) => {
                visitor.passed_over(error)?;
                None
            }
        };
        let Some(entry) = entry else {
            visitor.end(way.here()?)?;
            match way.up() {
                Up::Top => return Ok(None),
                Up::Parent => visitor.back(&at(way)?)?,
                Up::Elsewhere => visitor.passed_over(Errno::STALE)?,
            }
            continue;
        };
        entries += 1;
        let name = entry.file_name();
        let kind = match kind(way.here()?, &entry) {
            Err(error) if is_gone(error) => continue,
            other => other?,
        };
        if visitor.entry(&at(way)?, name, kind)? == Then::Pass {
            continue;
        }
        if way.depth() >= limits.depth {
            visitor.passed_over(Errno::NAMETOOLONG)?;
            continue;
        }
        match way.down(name) {
            Ok(()) => visitor.enter(name)?,
            Err(error) => visitor.passed_over(error)?,
        }
    }
}

fn at(way: &Way) -> rustix::io::Result<At<'_>> {
    Ok(At {
        dir: way.here()?,
        top: way.top.first().ok_or(Errno::BADF)?.dir.fd()?,
        depth: way.depth(),
    })
}

/// The type of an entry; some file systems need a stat for it.
fn kind(dir: BorrowedFd<'_>, entry: &DirEntry) -> rustix::io::Result<FileType> {
    match entry.file_type() {
        FileType::Unknown => {
            let stat = statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(FileType::from_raw_mode(stat.st_mode))
        }
        known => Ok(known),
    }
}

/// Owned by the caller of a walk on another thread: its drop ends the walk ([`Limits::is_over`]).
#[derive(Debug, Default)]
pub(crate) struct Waiting(Arc<AtomicBool>);

impl Waiting {
    /// The check to pass to the walk.
    pub(crate) fn is_over(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let over = Arc::clone(&self.0);
        move || over.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
