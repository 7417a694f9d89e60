//! Compares a layer's tree with its inventory: missing, changed and additional entries. Reads each
//! content once, follows no link, and walks only the inventory's paths.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;

use super::entry_facts::{self as facts, Facts};
use super::inventory::{self, Line, Reader};
use super::sum;
use crate::image::digest::Digest;
use crate::image::fsutil;
use crate::image::progress::Progress;
use crate::image::store::layer_record::INVENTORY;
use crate::walk::{IMAGE_DEPTH_MAX, Mounts, Up, Way, count};

/// The most reported damages of a layer; further ones are counted.
const REPORTED_MAX: usize = 20;
/// Bytes of a path that are reported.
const PATH_MAX: usize = 16 << 10;
/// Files with several names whose sums are remembered.
const LINKED_MAX: usize = 100_000;

/// Progress of a verification, and whether its caller has left.
pub struct Watch<'a> {
    pub progress: &'a Progress,
    pub is_over: &'a dyn Fn() -> bool,
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Checked entries.
    pub entries: u64,
    /// Paths in the layer, empty for the layer itself, each with its damage.
    pub damages: Vec<(String, String)>,
    /// Number of further damages.
    pub omitted: u64,
}

impl Found {
    pub(crate) fn damage(&mut self, path: &[u8], why: String) {
        if self.damages.len() == REPORTED_MAX {
            self.omitted += 1;
            return;
        }
        let shown = String::from_utf8_lossy(&path[..path.len().min(PATH_MAX)]);
        self.damages.push((shown.into_owned(), why));
    }
}

/// Compares `layer/fs` with `layer/tree`, whose digest must be `digest`. If the watch has ended,
/// the result is meaningless. Returns `None` for an inventory of another version.
pub(crate) fn compare(layer: &Path, digest: &Digest, watch: &Watch) -> Option<Found> {
    let mut check = Check {
        watch,
        found: Found::default(),
        linked: HashMap::new(),
    };
    match check.layer(layer, digest) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::Unsupported => return None,
        Err(error) => {
            let why = format!("its inventory cannot be read: {error}");
            check.found.damage(b"", why);
        }
    }
    Some(check.found)
}

struct Check<'a> {
    watch: &'a Watch<'a>,
    found: Found,
    /// Sums of files with several names, by inode.
    linked: HashMap<u64, u32>,
}

/// A directory on the path of the next entries.
struct Level {
    /// Length of its path.
    path: usize,
    /// Number of its entries that exist; `None` if it does not exist itself, which was reported
    /// with its parent's entries.
    present: Option<u64>,
}

impl Check<'_> {
    fn layer(&mut self, layer: &Path, digest: &Digest) -> io::Result<()> {
        let path = layer.join(INVENTORY);
        if inventory::digest(&File::open(&path)?)? != *digest {
            return Err(io::Error::other("it is damaged itself"));
        }
        let mut lines = Reader::new(File::open(&path)?)?;
        let root: OwnedFd = match File::open(layer.join("fs")) {
            Ok(root) => root.into(),
            Err(error) => {
                self.found
                    .damage(b"", format!("its tree cannot be opened: {error}"));
                return Ok(());
            }
        };
        let mut way = Way::new(root, Mounts::Refuse)?;
        let (mut path, mut levels) = (Vec::new(), Vec::<Level>::new());
        while let Some(line) = lines.next_line()? {
            if (self.watch.is_over)() {
                return Ok(());
            }
            let depth = levels.len();
            match (line, levels.last_mut()) {
                (Line::End, None) => return Err(io::Error::other("has too many ends")),
                (Line::End, Some(level)) => {
                    path.truncate(level.path);
                    if let Some(present) = level.present {
                        self.end(&way, &path, present)?;
                        // Only a damaged disk moves the content of a layer.
                        if way.up() == Up::Elsewhere {
                            return Err(Errno::STALE.into());
                        }
                    }
                    levels.pop();
                }
                (Line::Entry(_, want), None) => {
                    self.entry(way.here()?, c".", b"", &want);
                    levels.push(Level {
                        path: 0,
                        present: Some(0),
                    });
                }
                (Line::Entry(name, want), Some(level)) => {
                    path.truncate(level.path);
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend(name.to_bytes());
                    if let Some(present) = &mut level.present {
                        *present += u64::from(self.entry(way.here()?, &name, &path, &want));
                    }
                    if want.is_dir() {
                        if depth > IMAGE_DEPTH_MAX {
                            return Err(io::Error::other("is deeper than an image may be"));
                        }
                        let is_there = level.present.is_some() && self.down(&mut way, &name, &path);
                        levels.push(Level {
                            path: path.len(),
                            present: is_there.then_some(0),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Enters a directory; false if it is missing.
    fn down(&mut self, way: &mut Way, name: &CStr, path: &[u8]) -> bool {
        match way.down(name) {
            Ok(()) => true,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => false,
            Err(error) => {
                self.found
                    .damage(path, format!("cannot be opened: {error}"));
                false
            }
        }
    }

    /// Reports names that the directory has and the inventory lacks.
    fn end(&mut self, way: &Way, path: &[u8], present: u64) -> io::Result<()> {
        match count(way.here()?) {
            Ok(there) if there > present => {
                let more = there - present;
                self.found.damage(
                    path,
                    format!("has entries that the layer has not: {more} of {there}"),
                );
            }
            Ok(_) => {}
            Err(error) => self
                .found
                .damage(path, format!("cannot be listed: {error}")),
        }
        Ok(())
    }

    /// Checks an entry; false if it is missing.
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &[u8], want: &Facts) -> bool {
        self.found.entries += 1;
        let stat = match fsutil::stat(dir, name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => {
                self.found.damage(path, "is missing".to_owned());
                return false;
            }
            Err(error) => {
                self.found
                    .damage(path, format!("cannot be looked at: {error}"));
                return true;
            }
        };
        let differs = Facts::look(dir, name, &stat).map(|facts| facts.differs(want));
        let differs = match differs {
            Ok(None) if want.has_content() => {
                let linked = (stat.st_nlink > 1).then_some(stat.st_ino);
                self.content(dir, name, linked, want)
            }
            other => other,
        };
        match differs {
            Ok(None) => {}
            Ok(Some(why)) => self.found.damage(path, why),
            Err(error) => self.found.damage(path, format!("cannot be read: {error}")),
        }
        true
    }

    fn content(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        linked: Option<u64>,
        want: &Facts,
    ) -> io::Result<Option<String>> {
        let known = linked.and_then(|inode| self.linked.get(&inode).copied());
        let sum = match known {
            Some(sum) => sum,
            None => {
                let file = facts::open_file(dir, name)?;
                let watch = self.watch;
                sum::of_file(&file, want.size, &mut |bytes| {
                    watch.progress.add(bytes);
                    if (watch.is_over)() {
                        Err(io::ErrorKind::Interrupted.into())
                    } else {
                        Ok(())
                    }
                })?
            }
        };
        if let Some(inode) = linked {
            if self.linked.len() == LINKED_MAX {
                self.linked.clear();
            }
            self.linked.insert(inode, sum);
        }
        let differs = sum != want.content;
        Ok(differs.then(|| "has another content than it had".to_owned()))
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
