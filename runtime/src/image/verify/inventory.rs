//! The inventory of a layer's tree, written when the layer is committed: what `cairn image verify` holds the tree
//! against. `layers/<n>/tree` beside `layers/<n>/fs`; its digest is in `layer.json`.
//!
//! ```text
//! "cairn tree 1\n"
//! 1 facts 0 ""              the root itself
//! 0 length path             of the entries that follow this is the directory; the root's is empty
//! 1 facts length name       an entry
//! ```
//!
//! Integers are little-endian. A directory's entries stand together, in any order, so that neither writer nor reader
//! holds a tree, or a directory of it, in memory. A tree whose inventory would be too long has none: an image that
//! hostile cannot be verified.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use super::entry_facts::{self as facts, Facts};
use super::sum;
use crate::image::digest::{Digest, Hasher, HashingReader};
use crate::image::fsutil;
use crate::image::unpack::path::below;
use crate::remove::entries;

const HEAD: &[u8] = b"cairn tree 1\n";
/// Bytes of an inventory.
const BYTES_MAX: u64 = 256 << 20;
/// Bytes of the paths of directories that are still to be looked at.
const TODO_MAX: usize = 16 << 20;
const DIRECTORY: u8 = 0;
const ENTRY: u8 = 1;

/// Sums of files' contents by the files' inodes: what the unpack helper summed up as it wrote.
pub(crate) type Sums = HashMap<u64, u32>;

/// Writes the inventory of the tree at `root`. Contents that are not among `sums` are read. Its digest, or none for a
/// tree that is too large for one: `out` is worth nothing then.
pub(crate) fn write(root: BorrowedFd<'_>, sums: &Sums, out: &File) -> io::Result<Option<Digest>> {
    let mut writer = Writer {
        out: BufWriter::new(out),
        hasher: Hasher::default(),
    };
    writer.put(HEAD)?;
    writer.entry(b"", &Facts::look(root, c".", &fsutil::stat(root, c".")?)?)?;
    let mut todo = vec![Vec::new()];
    let mut waiting = 0;
    while let Some(path) = todo.pop() {
        waiting -= path.len();
        let dir = facts::open_dir(root, &path)?;
        writer.directory(&path)?;
        for entry in entries(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let facts = full(dir.as_fd(), name, sums)?;
            writer.entry(name.to_bytes(), &facts)?;
            if facts.is_dir() {
                let path = below(&path, name.to_bytes());
                waiting += path.len();
                todo.push(path);
            }
            if writer.hasher.bytes() > BYTES_MAX || waiting > TODO_MAX {
                return Ok(None);
            }
        }
    }
    writer.out.flush()?;
    Ok(Some(writer.hasher.finish()))
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

    fn directory(&mut self, path: &[u8]) -> io::Result<()> {
        self.put(&[DIRECTORY])?;
        self.text(path)
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

/// A line of an inventory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Directory(Vec<u8>),
    /// The root's name is empty.
    Entry(CString, Facts),
}

/// Reads an inventory whose digest is known to be right; another form is an error all the same.
pub(crate) struct Reader<R>(BufReader<R>);

impl<R: Read> Reader<R> {
    pub(crate) fn new(input: R) -> io::Result<Self> {
        let mut reader = Self(BufReader::new(input));
        match reader.bytes(HEAD.len())? == HEAD {
            true => Ok(reader),
            false => Err(io::Error::other("is of another version")),
        }
    }

    /// The next line, or none at the end.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<Line>> {
        let mut tag = [0];
        if self.0.read(&mut tag)? == 0 {
            return Ok(None);
        }
        match tag[0] {
            DIRECTORY => Ok(Some(Line::Directory(self.text()?))),
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
            _ => Err(io::Error::other("has a line of no known form")),
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

/// The digest of an inventory as it lies on the disk.
pub(crate) fn digest(file: &File) -> io::Result<Digest> {
    let mut reader = HashingReader::new(file);
    io::copy(&mut reader, &mut io::sink())?;
    Ok(reader.hasher.finish())
}
