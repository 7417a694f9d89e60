//! The inventory of a layer's tree, written at the commit, with which `cairn image verify` compares
//! the tree: `layers/<n>/tree` beside `layers/<n>/fs`. Its digest is in `layer.json`.
//!
//! ```text
//! "cairn tree 2\n"
//! 1 facts length name       an entry; the first one is the root, whose name is empty
//! 0                         the end of a directory's entries
//! ```
//!
//! Integers are little-endian. A directory's entries follow it in any order, up to their end:
//! neither writer nor reader keeps a tree or a directory in memory. A tree that is deeper than an
//! image may be, or whose inventory would be too long, gets none: such a hostile image cannot be
//! verified.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use super::entry_facts::{self as facts, Facts};
use super::sum;
use crate::image::digest::{Digest, Hasher, HashingReader};
use crate::image::fsutil;
use crate::walk::{At, IMAGE_DEPTH_MAX, Limits, Mounts, Then, Visitor, walk};

const HEAD: &[u8] = b"cairn tree 2\n";
/// The longest inventory, in bytes.
const BYTES_MAX: u64 = 256 << 20;
const END: u8 = 0;
const ENTRY: u8 = 1;

/// Content sums by inode, as computed by the unpack helper.
pub(crate) type Sums = HashMap<u64, u32>;

/// Writes the inventory of the tree at `root`; reads contents that are not in `sums`. Returns its
/// digest, or `None` for a too large tree: `out` is useless then.
pub(crate) fn write(root: BorrowedFd<'_>, sums: &Sums, out: &File) -> io::Result<Option<Digest>> {
    let mut writer = Writer {
        out: BufWriter::new(out),
        hasher: Hasher::default(),
        sums,
    };
    writer.put(HEAD)?;
    writer.entry(b"", &Facts::look(root, c".", &fsutil::stat(root, c".")?)?)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(root, c".", flags, Mode::empty())?;
    let limits = Limits {
        depth: IMAGE_DEPTH_MAX,
        ..Limits::NONE
    };
    match walk(top, Mounts::Refuse, &limits, &mut writer) {
        Ok(_) => {}
        Err(Unwritten::TooLarge) => return Ok(None),
        Err(Unwritten::Io(error)) => return Err(error),
    }
    writer.out.flush()?;
    Ok(Some(writer.hasher.finish()))
}

/// The reason why a tree has no inventory.
enum Unwritten {
    TooLarge,
    Io(io::Error),
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Unwritten {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl Visitor for Writer<'_> {
    type Error = Unwritten;

    fn entry(&mut self, at: &At<'_>, name: &CStr, _: FileType) -> Result<Then, Unwritten> {
        let facts = full(at.dir, name, self.sums)?;
        Writer::entry(self, name.to_bytes(), &facts)?;
        match (self.hasher.bytes() > BYTES_MAX, facts.is_dir()) {
            (true, _) => Err(Unwritten::TooLarge),
            (false, true) => Ok(Then::Enter),
            (false, false) => Ok(Then::Pass),
        }
    }

    fn end(&mut self, _: BorrowedFd<'_>) -> Result<(), Unwritten> {
        Ok(self.put(&[END])?)
    }

    fn passed_over(&mut self, why: Errno) -> Result<(), Unwritten> {
        match why {
            Errno::NAMETOOLONG => Err(Unwritten::TooLarge),
            why => Err(why.into()),
        }
    }
}

fn full(dir: BorrowedFd<'_>, name: &CStr, sums: &Sums) -> io::Result<Facts> {
    let stat = fsutil::stat(dir, name)?;
    let mut facts = Facts::look(dir, name, &stat)?;
    if facts.has_content() {
        facts.content = match sums.get(&stat.st_ino) {
            Some(sum) => *sum,
            None => {
                let file = facts::open_file(dir, name)?;
                sum::of_file(&file, facts.size, &mut |_| Ok(()))?
            }
        };
    }
    Ok(facts)
}

struct Writer<'a> {
    out: BufWriter<&'a File>,
    hasher: Hasher,
    sums: &'a Sums,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.out.write_all(bytes)
    }

    fn text(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        self.put(&length.to_le_bytes())?;
        self.put(bytes)
    }

    fn entry(&mut self, name: &[u8], facts: &Facts) -> io::Result<()> {
        let mut line = vec![ENTRY];
        for number in [facts.mode, facts.uid, facts.gid] {
            line.extend(number.to_le_bytes());
        }
        line.extend(facts.size.to_le_bytes());
        line.extend(facts.content.to_le_bytes());
        line.extend(facts.attributes.to_le_bytes());
        self.put(&line)?;
        self.text(name)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The root's name is empty. A directory's entries follow it.
    Entry(CString, Facts),
    /// The end of a directory's entries.
    End,
}

/// Reads an inventory with a checked digest. A malformed one is an error all the same, one of
/// another version `Unsupported`.
pub(crate) struct Reader<R>(BufReader<R>);

impl<R: Read> Reader<R> {
    pub(crate) fn new(input: R) -> io::Result<Self> {
        let mut reader = Self(BufReader::new(input));
        if reader.bytes(HEAD.len())? == HEAD {
            Ok(reader)
        } else {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// The next line, or `None` at the end.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<Line>> {
        let mut tag = [0];
        if self.0.read(&mut tag)? == 0 {
            return Ok(None);
        }
        match tag[0] {
            END => Ok(Some(Line::End)),
            ENTRY => {
                let facts = Facts {
                    mode: self.number()?,
                    uid: self.number()?,
                    gid: self.number()?,
                    size: u64::from(self.number()?) | u64::from(self.number()?) << 32,
                    content: self.number()?,
                    attributes: self.number()?,
                };
                let name = CString::new(self.text()?).map_err(io::Error::other)?;
                Ok(Some(Line::Entry(name, facts)))
            }
            _ => Err(io::Error::other("has an unknown kind of line")),
        }
    }

    fn number(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.0.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn text(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 2];
        self.0.read_exact(&mut length)?;
        self.bytes(u16::from_le_bytes(length).into())
    }

    fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// The digest of an inventory on disk.
pub(crate) fn digest(file: &File) -> io::Result<Digest> {
    let mut reader = HashingReader::new(file);
    io::copy(&mut reader, &mut io::sink())?;
    Ok(reader.hasher.finish())
}
