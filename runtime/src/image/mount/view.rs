//! Reads a container's root without mounting it: resolves paths through upper and lower trees as
//! overlayfs does, with whiteouts and opaque directories; symlinks stay inside.
//!
//! A directory of the view is a stack of directories, topmost first. A look-up goes down until an
//! entry hides the ones below.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::image::fsutil::{self, is, open_dir, open_file};

/// Symlinks followed in one look-up; the kernel's own limit.
const LINKS_MAX: usize = 40;
/// Components walked in one look-up, those of symlinks included.
const STEPS_MAX: usize = 4096;

/// Directories merged into one, topmost first.
type Merged = Rc<Vec<OwnedFd>>;

/// Kind of file at a path.
enum Found {
    Dir(Merged),
    Other(Shown),
}

/// A file that is not a directory, by its name in the directory that shows it.
struct Shown {
    dirs: Merged,
    at: usize,
    name: CString,
    stat: Stat,
}

impl Shown {
    fn dir(&self) -> BorrowedFd<'_> {
        self.dirs[self.at].as_fd()
    }
}

/// The trees of a container's root, topmost (the upper one) first.
pub(crate) struct View {
    root: Merged,
}

impl View {
    pub(crate) fn open(trees: &[PathBuf]) -> io::Result<Self> {
        let mut root = Vec::new();
        for tree in trees {
            root.push(OwnedFd::from(File::open(tree)?));
        }
        Ok(Self {
            root: Rc::new(root),
        })
    }

    /// The text of a regular file; symlinks are followed inside the view. `None` if there is no
    /// such file; an error if it is of another type, longer than `max`, or not UTF-8.
    pub(crate) fn text(&self, path: &Path, max: u64) -> io::Result<Option<String>> {
        let file = match self.find(path.as_os_str().as_encoded_bytes())? {
            None => return Ok(None),
            Some(Found::Other(shown)) if is(&shown.stat, FileType::RegularFile) => {
                open_file(shown.dir(), &shown.name)?
            }
            Some(_) => return Err(io::Error::other("is not a regular file")),
        };
        let mut bytes = Vec::new();
        file.take(max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max {
            return Err(io::Error::other(format!("is longer than {max} bytes")));
        }
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| io::Error::other("is not UTF-8"))
    }

    /// The file at a path; symlinks stay inside.
    fn find(&self, path: &[u8]) -> io::Result<Option<Found>> {
        let nothing = Merged::default();
        let mut todo: VecDeque<Vec<u8>> = components(path).collect();
        let mut stack: Vec<Merged> = Vec::new();
        let mut last = None;
        let (mut links, mut steps) = (0, STEPS_MAX);
        while let Some(name) = todo.pop_front() {
            steps = usize::checked_sub(steps, 1).ok_or(Errno::NAMETOOLONG)?;
            last = None;
            if name == b".." {
                stack.pop();
                continue;
            }
            let here = stack.last().unwrap_or(&self.root).clone();
            let name = CString::new(name).map_err(io::Error::other)?;
            match step(&here, &name)? {
                None => stack.push(nothing.clone()),
                Some(Found::Dir(dir)) => stack.push(dir),
                Some(Found::Other(link)) if is(&link.stat, FileType::Symlink) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = rustix::fs::readlinkat(link.dir(), &link.name, Vec::new())?;
                    if target.as_bytes().starts_with(b"/") {
                        stack.clear();
                    }
                    for part in components(target.as_bytes()).rev() {
                        todo.push_front(part);
                    }
                }
                Some(other) => {
                    stack.push(nothing.clone());
                    last = Some(other);
                }
            }
        }
        let dir = stack.last().unwrap_or(&self.root);
        let dir = (!dir.is_empty()).then(|| Found::Dir(dir.clone()));
        Ok(last.or(dir))
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|b| *b == b'/')
        .filter(|c| !c.is_empty() && *c != b".")
        .map(<[u8]>::to_vec)
}

/// Looks up `name` in a merged directory.
fn step(here: &Merged, name: &CStr) -> io::Result<Option<Found>> {
    let mut dirs = Vec::new();
    for (at, dir) in here.iter().enumerate() {
        let stat = match fsutil::stat(dir, name) {
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
            let (dirs, name) = (here.clone(), name.to_owned());
            let shown = Shown {
                dirs,
                at,
                name,
                stat,
            };
            return Ok(Some(Found::Other(shown)));
        } else {
            break;
        }
    }
    Ok((!dirs.is_empty()).then(|| Found::Dir(Rc::new(dirs))))
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

#[cfg(test)]
#[path = "view_tests.rs"]
pub(super) mod tests;
