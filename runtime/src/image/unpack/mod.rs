//! The unpack helper, `cairn unpack`: a short process that turns one layer's stream into a tree.
//!
//! ```text
//! stdin   the layer as transferred: gzip, zstd or plain tar
//! stdout  JSON, the `Report`, when all of it went well
//! stderr  one line saying why, else
//! ```
//!
//! It shuts itself in before it reads the first byte (`confine.rs`): chroot to the layer's directory, a
//! network namespace of its own with nothing in it, no user that owns anything, six capabilities, a
//! filter of system calls, bounds on memory, processes, descriptors and file size. The daemon gives it
//! nothing else and believes only the report's form.

pub mod apply;
mod confine;
pub mod decode;
pub mod limits;
mod metadata;
pub mod path;
pub mod tarball;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::image::digest::{Digest, HashingReader};
use crate::image::verify::inventory::Sums;
use apply::Applier;
use limits::{REPORTED_MAX, SUMS_MAX, TreeBounds};
use path::CleanPath;

/// The report is a few numbers, three lists of paths, and one of sums, of up to 8 MB.
pub const REPORT_MAX: u64 = 24 << 20;
/// An inode and a sum.
const SUM: usize = 12;

/// Report of the helper. Paths are bytes, so the lists are base64 of NUL-terminated paths.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Digest of the uncompressed archive, all of it.
    pub diff_id: Digest,
    pub inodes: u64,
    pub disk_bytes: u64,
    implied: String,
    opaque: String,
    whiteouts: String,
    /// Little-endian inodes and sums, in base64.
    sums: String,
}

/// What of a report is looked at first.
#[derive(Debug, Deserialize)]
pub struct Summary {
    pub diff_id: Digest,
    pub inodes: u64,
    pub disk_bytes: u64,
}

impl Report {
    /// Directories that take their attributes from lower layers, shallowest first (CRI-442).
    pub fn implied(&self) -> Result<Vec<CleanPath>, String> {
        paths(&self.implied)
    }

    /// Whiteouts that were made.
    pub fn whiteouts(&self) -> Result<Vec<CleanPath>, String> {
        paths(&self.whiteouts)
    }

    /// Directories to be marked opaque.
    pub fn opaque(&self) -> Result<Vec<CleanPath>, String> {
        paths(&self.opaque)
    }

    /// Sums of the files that were written.
    pub fn sums(&self) -> Result<Sums, String> {
        let bytes = STANDARD.decode(&self.sums).map_err(|e| e.to_string())?;
        let (sums, rest) = bytes.as_chunks::<SUM>();
        if !rest.is_empty() || sums.len() > SUMS_MAX {
            return Err(format!("sums of {} bytes", bytes.len()));
        }
        let one = |[a, b, c, d, e, f, g, h, sum @ ..]: &[u8; SUM]| {
            let inode = u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
            (inode, u32::from_le_bytes(*sum))
        };
        Ok(sums.iter().map(one).collect())
    }
}

fn list<'a>(paths: impl IntoIterator<Item = &'a CleanPath>) -> String {
    let mut bytes = Vec::new();
    for path in paths {
        bytes.extend(path.as_bytes());
        bytes.push(0);
    }
    STANDARD.encode(bytes)
}

fn listed(sums: &HashMap<u64, u32>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(sums.len() * SUM);
    for (inode, sum) in sums {
        bytes.extend(inode.to_le_bytes());
        bytes.extend(sum.to_le_bytes());
    }
    bytes
}

fn paths(list: &str) -> Result<Vec<CleanPath>, String> {
    let bytes = STANDARD.decode(list).map_err(|e| e.to_string())?;
    let Some(bytes) = bytes.strip_suffix(&[0]) else {
        return Ok(Vec::new());
    };
    if bytes.iter().filter(|b| **b == 0).count() >= REPORTED_MAX {
        return Err(format!("more than {REPORTED_MAX} paths"));
    }
    bytes
        .split(|b| *b == 0)
        .map(|p| CleanPath::new(p).map_err(|e| e.to_string()))
        .collect()
}

/// The helper's `main`: `cairn unpack <directory> <max bytes> <max files> <max depth>`. The process has one
/// thread and does nothing after this.
pub fn helper_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut out = io::stdout();
    let done = parse(args).and_then(|(dir, limits)| {
        let root = confine::confine(&dir, limits.bytes.max(REPORT_MAX))
            .map_err(|e| io::Error::new(e.kind(), format!("confine: {e}")))?;
        let report = unpack(io::stdin().lock(), root, limits)?;
        serde_json::to_writer(&mut out, &report)?;
        out.flush()
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let bound = match e.kind() {
                io::ErrorKind::FileTooLarge => " (image.max_image_bytes, or the disk's room)",
                _ => "",
            };
            let _ = writeln!(io::stderr(), "{e}{bound}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: impl IntoIterator<Item = OsString>) -> io::Result<(PathBuf, TreeBounds)> {
    let args: Vec<_> = args.into_iter().collect();
    let Ok([dir, bytes, files, depth]) = <[OsString; 4]>::try_from(args) else {
        return Err(io::Error::other(
            "usage: unpack <directory> <max bytes> <max files> <max depth>",
        ));
    };
    let number = |text: OsString| {
        let number = text.to_str().and_then(|t| t.parse::<u64>().ok());
        number.ok_or_else(|| io::Error::other("a limit is not a number"))
    };
    Ok((
        dir.into(),
        TreeBounds {
            bytes: number(bytes)?,
            files: number(files)?,
            depth: u32::try_from(number(depth)?).unwrap_or(u32::MAX),
        },
    ))
}

fn unpack(input: impl io::Read, root: OwnedFd, limits: TreeBounds) -> io::Result<Report> {
    let mut plain = HashingReader::new(decode::bounded(input, limits.bytes)?);
    let mut reader = tarball::Reader::new(&mut plain);
    let mut applier = Applier::new(root, limits);
    while let Some(entry) = reader.next_entry()? {
        applier.apply(&entry, &mut reader).map_err(|e| {
            let name = String::from_utf8_lossy(&entry.path[..entry.path.len().min(200)]);
            io::Error::new(e.kind(), format!("entry {name:?}: {e}"))
        })?;
    }
    reader.finish()?;
    let applied = applier.finish()?;
    Ok(Report {
        diff_id: plain.hasher.finish(),
        inodes: applied.inodes,
        disk_bytes: applied.disk_bytes,
        implied: list(&applied.implied),
        opaque: list(&applied.opaque),
        whiteouts: list(&applied.whiteouts),
        sums: STANDARD.encode(listed(&applied.sums)),
    })
}
