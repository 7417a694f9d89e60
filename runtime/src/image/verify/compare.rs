//! A layer's tree held against its inventory: what is missing, what has changed, what is there besides. Reads each content
//! once, follows nothing, and is as deep and as wide as the inventory says, whatever the tree has become.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;

use super::entry_facts::{self as facts, Facts};
use super::inventory::{self, Line, Reader};
use super::sum;
use crate::image::digest::Digest;
use crate::image::fsutil;
use crate::image::progress::Progress;
use crate::image::store::layer_record::INVENTORY;
use crate::image::unpack::path::below;
use crate::remove::entries;

/// Damages of a layer that are told; the rest is counted.
const TOLD_MAX: usize = 20;
/// Files with several names whose sums are remembered.
const LINKED_MAX: usize = 100_000;

/// How far it is, and whether anybody still wants to know.
pub struct Watch<'a> {
    pub progress: &'a Progress,
    pub is_over: &'a dyn Fn() -> bool,
}

/// What was found of one layer.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Entries that were looked at.
    pub entries: u64,
    /// Paths as they are in the layer, empty for the layer itself, with what is wrong there.
    pub damages: Vec<(String, String)>,
    /// Damages that are not among those.
    pub untold: u64,
}

impl Found {
    pub(crate) fn damage(&mut self, path: &[u8], why: String) {
        if self.damages.len() == TOLD_MAX {
            self.untold += 1;
            return;
        }
        let path = String::from_utf8_lossy(path).into_owned();
        self.damages.push((path, why));
    }
}

/// Holds `layer/fs` against `layer/tree`, whose digest is to be `digest`. Where the watch is over, what is
/// found is worth nothing.
pub(crate) fn compare(layer: &Path, digest: &Digest, watch: &Watch) -> Found {
    let mut check = Check {
        watch,
        found: Found::default(),
        linked: HashMap::new(),
    };
    if let Err(error) = check.layer(layer, digest) {
        let why = format!("its inventory cannot be read: {error}");
        check.found.damage(b"", why);
    }
    check.found
}

struct Check<'a> {
    watch: &'a Watch<'a>,
    found: Found,
    /// Sums of files with several names, by inode.
    linked: HashMap<u64, u32>,
}

/// The directory whose entries come now.
struct Group {
    path: Vec<u8>,
    /// None where it is not there, which was told where its parent's entries came.
    dir: Option<OwnedFd>,
    /// Of its entries, those that are there.
    present: u64,
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
        let mut group: Option<Group> = None;
        while let Some(line) = lines.next_line()? {
            if (self.watch.is_over)() {
                return Ok(());
            }
            match (line, &mut group) {
                (Line::Directory(path), _) => {
                    self.end(group.take());
                    group = Some(self.begin(root.as_fd(), path));
                }
                (Line::Entry(_, want), None) => {
                    self.entry(root.as_fd(), c".", b"", &want);
                }
                (Line::Entry(name, want), Some(group)) => {
                    if let Some(dir) = &group.dir {
                        let path = below(&group.path, name.to_bytes());
                        group.present += u64::from(self.entry(dir.as_fd(), &name, &path, &want));
                    }
                }
            }
        }
        self.end(group);
        Ok(())
    }

    fn begin(&mut self, root: BorrowedFd<'_>, path: Vec<u8>) -> Group {
        let dir = match facts::open_dir(root, &path) {
            Ok(dir) => Some(dir),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            Err(error) => {
                self.found
                    .damage(&path, format!("cannot be opened: {error}"));
                None
            }
        };
        Group {
            path,
            dir,
            present: 0,
        }
    }

    /// Tells of names that the directory has and the inventory has not.
    fn end(&mut self, group: Option<Group>) {
        let Some(Group {
            path,
            dir: Some(dir),
            present,
        }) = group
        else {
            return;
        };
        match count(&dir) {
            Ok(there) if there > present => {
                let more = there - present;
                self.found.damage(
                    &path,
                    format!("has entries that the layer has not: {more} of {there}"),
                );
            }
            Ok(_) => {}
            Err(error) => self
                .found
                .damage(&path, format!("cannot be listed: {error}")),
        }
    }

    /// Whether the entry is there at all.
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
                    match (watch.is_over)() {
                        true => Err(io::ErrorKind::Interrupted.into()),
                        false => Ok(()),
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

fn count(dir: &OwnedFd) -> rustix::io::Result<u64> {
    entries(dir)?.try_fold(0, |there, entry| entry.map(|_| there + 1))
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
