//! The one walk over trees that an image or a container has shaped: they are counted, copied, labelled, verified and
//! removed by it.
//!
//! A stranger chooses how deep and how wide such a tree is, and may change it meanwhile. So nothing here recurses, lists a
//! directory or keeps a name per level:
//!
//! ```text
//! top … KEPT_OPEN levels down       open, until the walk ends
//! … between …                  24 bytes each: which directory it is, and how far it was read
//! the last KEPT_OPEN levels         open
//! ```
//!
//! The way back to a level in between is `..`. It counts only where it leads to the directory that the walk came down
//! through. Where that was moved, the walk goes on at the next directory that is open, and the rest of those in between is
//! passed over. Each directory is opened once from its parent and once more on the way back at most, so that a walk takes as
//! many system calls as the tree has entries, whatever its shape. No symlink is followed.

use std::{
    collections::VecDeque,
    ffi::CStr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
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

/// Directories that are open from the top down, and as many from where the walk is up.
pub(crate) const KEPT_OPEN: usize = 16;
/// Directories in each other that a walk enters at most: 5 MB of what is known of them.
pub(crate) const DEPTH_MAX: usize = 200_000;
/// Directories in each other in a tree of an image: twice what `image.max_image_depth` may be.
pub(crate) const IMAGE_DEPTH_MAX: usize = 4096;
/// Entries between two looks at the clock.
const CHECKED: u64 = 64;

/// Whether a walk enters what is mounted in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounts {
    Enter,
    /// One that is met is [`Errno::XDEV`].
    Refuse,
}

/// Which directory it is: its device and inode.
type Identity = (u64, u64);

struct Open {
    dir: Dir,
    id: Identity,
    /// Where its reading goes on.
    next: i64,
}

struct Closed {
    id: Identity,
    next: i64,
}

/// The directories from a tree's top to where one is in it.
pub(crate) struct Way {
    top: Vec<Open>,
    between: Vec<Closed>,
    near: VecDeque<Open>,
    mounts: Mounts,
}

/// Where [`Way::up`] led.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Up {
    Parent,
    /// The parent was moved. It is the next directory above that is still known.
    Elsewhere,
    /// There is nothing above the top.
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

    /// Directories above this one.
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

    /// The next entry of this directory that was not read before.
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

    /// Reads the top again from its beginning.
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

    /// Its parent, if that is still this one.
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

/// Entries of one directory, but for itself and its parent.
pub(crate) fn count(dir: impl AsFd) -> rustix::io::Result<u64> {
    let mut there = 0;
    for entry in Dir::read_from(dir)? {
        there += u64::from(!is_dots(&entry?));
    }
    Ok(there)
}

/// What a visitor wants of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Enter,
    Pass,
}

/// Where a visitor is.
pub(crate) struct At<'a> {
    pub dir: BorrowedFd<'a>,
    pub top: BorrowedFd<'a>,
    /// Directories above this one.
    pub depth: usize,
}

/// What a walk does with a tree. An error ends the walk.
pub(crate) trait Visitor {
    type Error: From<Errno>;

    /// Each entry once. [`Then::Enter`] is for directories.
    fn entry(&mut self, at: &At<'_>, name: &CStr, kind: FileType) -> Result<Then, Self::Error>;

    /// The directory `name` is open, and its entries come now.
    fn enter(&mut self, _name: &CStr) -> Result<(), Self::Error> {
        Ok(())
    }

    /// All entries of a directory were visited, those of the top last.
    fn end(&mut self, _dir: BorrowedFd<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The walk is back in the parent of the directory that [`Visitor::end`] named.
    fn back(&mut self, _at: &At<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The content of a directory is left out: it was removed or moved ([`is_gone`]), it is too deep (`NAMETOOLONG`), or it
    /// cannot be read.
    fn passed_over(&mut self, why: Errno) -> Result<(), Self::Error>;
}

/// Whether its place was taken by something else, or it was moved out of the tree.
pub(crate) fn is_gone(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE
    )
}

/// Where a walk ends at the latest.
pub(crate) struct Limits<'a> {
    pub entries: u64,
    pub depth: usize,
    pub until: Option<Instant>,
    /// Asked now and then: nobody waits for the walk any more.
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

/// Why a walk ended before its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Entries,
    Time,
    /// Nobody waits for it.
    Over,
}

/// Walks over the directory `top`. `None`: to its end.
pub(crate) fn walk<V: Visitor>(
    top: OwnedFd,
    mounts: Mounts,
    limits: &Limits<'_>,
    visitor: &mut V,
) -> Result<Option<Cut>, V::Error> {
    walk_way(&mut Way::new(top, mounts)?, limits, visitor)
}

/// [`walk`] once more over the same top.
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

/// Not every file system says it with the name.
fn kind(dir: BorrowedFd<'_>, entry: &DirEntry) -> rustix::io::Result<FileType> {
    match entry.file_type() {
        FileType::Unknown => {
            let stat = statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(FileType::from_raw_mode(stat.st_mode))
        }
        known => Ok(known),
    }
}

/// Kept by who waits for a walk on another thread: when it is dropped, the walk is [over](Limits::is_over).
#[derive(Debug, Default)]
pub(crate) struct Waiting(Arc<AtomicBool>);

impl Waiting {
    /// For the walk.
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
