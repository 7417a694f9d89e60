//! The unpack helper, `cairn unpack`: a short-lived process that turns one layer's stream into a
//! tree, or an image archive into numbered files.
//!
//! ```text
//! stdin   the layer as transferred, or the archive: gzip, zstd or plain tar
//! stdout  JSON on success: the `Report` or a list of `Listed`
//! stderr  one line with the reason on failure
//! ```
//!
//! It confines itself before it reads the first byte (`confine.rs`): chroot to its directory, an
//! empty network namespace, a user that owns nothing, for a layer six capabilities, a system call
//! filter, and bounds on memory, processes, descriptors and file size. The daemon gives it nothing
//! else and trusts only the form of its report.

pub mod apply;
pub mod archive;
mod confine;
pub mod decode;
pub mod limits;
mod metadata;
pub mod path;
pub mod tarball;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::image::digest::{Digest, HashingReader};
use apply::Applier;
use confine::Rights;
use limits::{REPORTED_MAX, TreeBounds};
use path::CleanPath;

/// The kind of input, the helper's first argument.
pub const LAYER: &str = "layer";
pub const ARCHIVE: &str = "archive";
/// A report has a few numbers and three lists of paths.
pub const REPORT_MAX: u64 = 16 << 20;

/// Report of the helper. Paths are bytes: the lists are base64 of NUL-terminated paths.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Digest of the complete uncompressed archive.
    pub diff_id: Digest,
    pub inodes: u64,
    pub disk_bytes: u64,
    implied: String,
    opaque: String,
    whiteouts: String,
}

/// The part of a report that is read first.
#[derive(Debug, Deserialize)]
pub struct Summary {
    pub diff_id: Digest,
    pub inodes: u64,
    pub disk_bytes: u64,
}

impl Report {
    /// Directories that get their attributes from lower layers, shallowest first (CRI-442).
    pub fn implied(&self) -> Result<Vec<CleanPath>, String> {
        paths(&self.implied)
    }

    /// Whiteouts that were made.
    pub fn whiteouts(&self) -> Result<Vec<CleanPath>, String> {
        paths(&self.whiteouts)
    }

    /// Directories to mark as opaque.
    pub fn opaque(&self) -> Result<Vec<CleanPath>, String> {
        paths(&self.opaque)
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

const USAGE: &str = "usage: unpack layer <directory> <max bytes> <max files> <max depth>, or \
                     unpack archive <directory> <max bytes>";

enum Work {
    Layer(TreeBounds),
    /// Bytes of the uncompressed archive.
    Archive(u64),
}

/// The helper's `main`. The process has one thread and does nothing after this.
pub fn helper_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let done = parse(args).and_then(|(dir, work)| do_work(&dir, &work));
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

fn parse(args: impl IntoIterator<Item = OsString>) -> io::Result<(PathBuf, Work)> {
    let usage = || io::Error::other(USAGE);
    let mut args = args.into_iter();
    let (kind, dir) = (
        args.next().ok_or_else(usage)?,
        args.next().ok_or_else(usage)?,
    );
    let limits = args.map(|text| text.to_str().and_then(|t| t.parse().ok()));
    let limits: Option<Vec<u64>> = limits.collect();
    let work = match (kind.to_str(), limits.as_deref()) {
        (Some(LAYER), Some(&[bytes, files, depth])) => Work::Layer(TreeBounds {
            bytes,
            files,
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
        }),
        (Some(ARCHIVE), Some(&[bytes])) => Work::Archive(bytes),
        _ => return Err(usage()),
    };
    Ok((dir.into(), work))
}

fn do_work(dir: &Path, work: &Work) -> io::Result<()> {
    let (bytes, rights) = match work {
        Work::Layer(limits) => (limits.bytes, Rights::Trees),
        Work::Archive(bytes) => (*bytes, Rights::OwnFiles),
    };
    let root = confine::confine(dir, bytes.max(REPORT_MAX), rights)
        .map_err(|e| io::Error::new(e.kind(), format!("confine: {e}")))?;
    let (input, mut out) = (io::stdin().lock(), io::stdout());
    match work {
        Work::Layer(limits) => serde_json::to_writer(&mut out, &unpack(input, root, *limits)?)?,
        Work::Archive(max) => {
            serde_json::to_writer(&mut out, &archive::read(input, Path::new("/"), *max)?)?
        }
    }
    out.flush()
}

/// The helper's work in this process, for seeded runs. Returns its report.
#[cfg(any(test, feature = "seeded"))]
pub(super) fn work_here(
    args: impl IntoIterator<Item = OsString>,
    input: &[u8],
) -> io::Result<Vec<u8>> {
    let (dir, work) = parse(args)?;
    let report = match work {
        Work::Layer(limits) => {
            let root = std::fs::File::open(dir)?.into();
            serde_json::to_vec(&unpack(input, root, limits)?)
        }
        Work::Archive(max) => serde_json::to_vec(&archive::read(input, &dir, max)?),
    };
    Ok(report?)
}

fn unpack(input: impl io::Read, root: OwnedFd, limits: TreeBounds) -> io::Result<Report> {
    let mut plain = HashingReader::new(decode::bounded(input, limits.bytes, decode::LAYER)?);
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
    })
}
