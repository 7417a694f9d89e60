//! A reader of tar streams: ustar, GNU long names, PAX. It trusts nothing and bounds everything.
//!
//! The `tar` crate does not fit: it splits PAX records at newlines, so that it loses an extended
//! attribute whose value has a byte 0x0a (as file capabilities do) and a `size` record behind it;
//! and it keeps long names and PAX blocks of any size in memory. Sparse entries, which no image
//! builder writes, are refused by name.

use std::io::{self, Read};

use super::path::below;

const BLOCK: usize = 512;
/// A PAX block or a long name: attributes of one file are at most 64 KiB each.
const EXTENSION_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir,
    Symlink,
    /// `link` is an entry of the same archive.
    Hardlink,
    Char,
    Block,
    Fifo,
}

/// One entry; its data must be read from the `Reader` before the next entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    pub path: Vec<u8>,
    /// Target of a symlink or hard link.
    pub link: Vec<u8>,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    pub size: u64,
    pub device: (u32, u32),
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Records before an entry that change it.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

pub struct Reader<R> {
    inner: R,
    /// Unread bytes of the current entry's data, and the padding behind them.
    data: u64,
    padding: u64,
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl<R: Read> Reader<R> {
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            data: 0,
            padding: 0,
        }
    }

    /// The next entry, or `None` at the end of the archive. Skips the rest of the last one.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut extension = Extension::default();
        loop {
            self.skip_rest()?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let flag = header[156];
            let size = number(&header[124..136])?;
            match flag {
                b'x' => extension.read_pax(&self.extension(size)?)?,
                b'L' => extension.path = Some(until_nul(&self.extension(size)?).to_vec()),
                b'K' => extension.link = Some(until_nul(&self.extension(size)?).to_vec()),
                // A global comment; image builders put nothing relevant into it.
                b'g' => self.set_data(size)?,
                _ => return self.entry(&header, size, extension).map(Some),
            }
        }
    }

    /// Reads to the end of the stream, padding included, so that a digest covers all of it.
    pub fn finish(&mut self) -> io::Result<()> {
        self.skip_rest()?;
        io::copy(&mut self.inner, &mut io::sink())?;
        Ok(())
    }

    fn entry(&mut self, h: &[u8; BLOCK], size: u64, ext: Extension) -> io::Result<Entry> {
        let mut path = ext.path.unwrap_or_else(|| header_path(h));
        let kind = match h[156] {
            0 if path.ends_with(b"/") => Kind::Dir,
            0 | b'0' | b'7' => Kind::File,
            b'1' => Kind::Hardlink,
            b'2' => Kind::Symlink,
            b'3' => Kind::Char,
            b'4' => Kind::Block,
            b'5' => Kind::Dir,
            b'6' => Kind::Fifo,
            b'S' => return Err(bad("sparse entries are not supported")),
            other => return Err(bad(format!("unknown entry type {:?}", char::from(other)))),
        };
        if path.is_empty() {
            path = b".".to_vec();
        }
        // Only files have data; every tool ignores a size on other entries.
        let size = if kind == Kind::File {
            ext.size.unwrap_or(size)
        } else {
            0
        };
        self.set_data(size)?;
        let device = |at| small(&h[at..at + 8], "device");
        let device = match kind {
            Kind::Char | Kind::Block => (device(329)?, device(337)?),
            _ => (0, 0),
        };
        let mtime = i64::try_from(number(&h[136..148]).unwrap_or(0)).unwrap_or(0);
        Ok(Entry {
            kind,
            path,
            link: ext.link.unwrap_or_else(|| until_nul(&h[157..257]).to_vec()),
            mode: small(&h[100..108], "mode")? & 0o7777,
            uid: ext.uid.map_or_else(|| small(&h[108..116], "uid"), Ok)?,
            gid: ext.gid.map_or_else(|| small(&h[116..124], "gid"), Ok)?,
            mtime: ext.mtime.unwrap_or((mtime, 0)),
            size,
            device,
            xattrs: ext.xattrs,
        })
    }

    fn set_data(&mut self, size: u64) -> io::Result<()> {
        let padded = size.checked_next_multiple_of(BLOCK as u64);
        self.padding = padded.ok_or_else(|| bad("entry size out of range"))? - size;
        self.data = size;
        Ok(())
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        let left = self.data + self.padding;
        (self.data, self.padding) = (0, 0);
        match io::copy(&mut (&mut self.inner).take(left), &mut io::sink())? {
            n if n == left => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The next header; `None` at a zero block or at a clean end of the stream.
    fn header(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let mut block = Vec::with_capacity(BLOCK);
        (&mut self.inner)
            .take(BLOCK as u64)
            .read_to_end(&mut block)?;
        if block.is_empty() {
            return Ok(None);
        }
        let block = <[u8; BLOCK]>::try_from(block);
        let block = block.map_err(|_| io::ErrorKind::UnexpectedEof)?;
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum = |f: &dyn Fn(u8) -> i64| -> i64 {
            let around = block[..148].iter().chain(&block[156..]);
            around.map(|b| f(*b)).sum::<i64>() + 8 * i64::from(b' ')
        };
        let want = i64::try_from(number(&block[148..156])?).unwrap_or(-1);
        // Old writers summed signed bytes.
        if want != sum(&|b| i64::from(b)) && want != sum(&|b| i64::from(b.cast_signed())) {
            return Err(bad("not a tar header (checksum)"));
        }
        Ok(Some(block))
    }

    fn extension(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > EXTENSION_MAX {
            return Err(bad(format!("extended header too large ({size} bytes)")));
        }
        self.set_data(size)?;
        let mut bytes = Vec::new();
        self.take(size).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == size {
            Ok(bytes)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// The data of the current entry.
impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf
            .len()
            .min(usize::try_from(self.data).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let n = self.inner.read(&mut buf[..want])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.data -= n as u64;
        Ok(n)
    }
}

impl Extension {
    /// Reads records of `<length> <key>=<value>\n`. The length counts itself; the value may contain
    /// anything, also newlines.
    fn read_pax(&mut self, mut block: &[u8]) -> io::Result<()> {
        let malformed = || bad("malformed extended header");
        while !block.is_empty() {
            let space = block
                .iter()
                .take(10)
                .position(|b| *b == b' ')
                .ok_or_else(malformed)?;
            let length = decimal(&block[..space]).ok_or_else(malformed)?;
            let record = usize::try_from(length)
                .ok()
                .and_then(|end| block.get(space + 1..end));
            let record = record
                .and_then(|r| r.strip_suffix(b"\n"))
                .ok_or_else(malformed)?;
            let equals = record
                .iter()
                .position(|b| *b == b'=')
                .ok_or_else(malformed)?;
            self.set(&record[..equals], &record[equals + 1..])?;
            block = &block[record.len() + space + 2..];
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let id = || {
            let id = decimal(value).and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| bad("owner out of range"))
        };
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(decimal(value).ok_or_else(|| bad("bad size"))?),
            b"uid" => self.uid = Some(id()?),
            b"gid" => self.gid = Some(id()?),
            b"mtime" => self.mtime = Some(seconds(value).ok_or_else(|| bad("bad mtime"))?),
            _ if key.starts_with(b"GNU.sparse.") => {
                return Err(bad("sparse entries are not supported"));
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

fn header_path(h: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_nul(&h[..100]);
    // GNU archives ("ustar " with a space) have other data in the place of the prefix.
    let prefix = if &h[257..263] == b"ustar\0" {
        until_nul(&h[345..500])
    } else {
        b""
    };
    below(prefix, name)
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

/// A numeric field: octal text, or big-endian binary when the top bit is set.
fn number(field: &[u8]) -> io::Result<u64> {
    let out_of_range = || bad("number out of range in a header");
    match field[0] {
        0x80 => field[1..]
            .iter()
            .try_fold(0u64, |n, b| Some(n.checked_mul(256)? | u64::from(*b))),
        first if first & 0x80 != 0 => None,
        _ => {
            let text = until_nul(field).trim_ascii();
            text.iter().try_fold(0u64, |n, b| match b {
                b'0'..=b'7' => n.checked_mul(8)?.checked_add(u64::from(b - b'0')),
                _ => None,
            })
        }
    }
    .ok_or_else(out_of_range)
}

fn small(field: &[u8], what: &str) -> io::Result<u32> {
    u32::try_from(number(field)?).map_err(|_| bad(format!("{what} out of range in a header")))
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// `[-]seconds[.fraction]`; nanoseconds always count upwards.
fn seconds(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = &fraction[..fraction.len().min(9)];
    let nanos: u32 = if digits.is_empty() {
        0
    } else {
        format!("{digits:0<9}").parse().ok()?
    };
    if text.starts_with('-') && nanos > 0 {
        return Some((whole.checked_sub(1)?, 1_000_000_000 - nanos));
    }
    Some((whole, nanos))
}

#[cfg(test)]
#[path = "tarball_tests.rs"]
mod tests;
