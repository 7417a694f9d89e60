//! The unpack helper, `cairn unpack`: a short process that turns one layer's stream into a tree.
//!
//! ```text
//! stdin   the layer as transferred: gzip, zstd or plain tar
//! stdout  one line of JSON, the `Report`, when all of it went well
//! stderr  one line saying why, else
//! ```
//!
//! It shuts itself in before it reads the first byte: chroot to the layer's directory, a network
//! namespace of its own with nothing in it, no user that owns anything, six capabilities, bounds on
//! memory and file size. The daemon gives it nothing else and believes only the report's form.

pub mod apply;
pub mod decode;
mod metadata;
pub mod path;
pub mod tarball;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use super::digest::{Digest, HashingReader};
use apply::Applier;
use path::CleanPath;

/// Address space of the helper: two zstd windows, and room for long lists of directories.
const MEMORY_MAX: u64 = 768 << 20;
/// The report is a few numbers and two lists of directories.
pub const REPORT_MAX: u64 = 64 << 20;
/// An account that owns nothing.
const NOBODY: u32 = 65534;

/// What was unpacked. Paths are bytes, so the lists are base64 of NUL-ended paths.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Digest of the uncompressed archive, all of it.
    pub diff_id: Digest,
    pub inodes: u64,
    pub disk_bytes: u64,
    implied: String,
    opaque: String,
    whiteouts: String,
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
    bytes
        .split(|b| *b == 0)
        .map(|p| CleanPath::new(p).map_err(|e| e.to_string()))
        .collect()
}

/// What the helper may make at most.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
    pub entries: u64,
}

/// The helper's `main`: `cairn unpack <directory> <max bytes> <max entries>`. The process has one
/// thread and does nothing after this.
pub fn helper_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut out = io::stdout();
    let done = parse(args).and_then(|(dir, limits)| {
        let root = confine(&dir).map_err(|e| io::Error::new(e.kind(), format!("confine: {e}")))?;
        let report = unpack(io::stdin().lock(), root, limits)?;
        serde_json::to_writer(&mut out, &report)?;
        out.flush()
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(io::stderr(), "{e}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: impl IntoIterator<Item = OsString>) -> io::Result<(PathBuf, Limits)> {
    let mut args = args.into_iter();
    let (Some(dir), Some(bytes), Some(entries), None) =
        (args.next(), args.next(), args.next(), args.next())
    else {
        return Err(io::Error::other(
            "usage: unpack <directory> <max bytes> <max entries>",
        ));
    };
    let number = |text: OsString| {
        let number = text.to_str().and_then(|t| t.parse().ok());
        number.ok_or_else(|| io::Error::other("a limit is not a number"))
    };
    Ok((
        dir.into(),
        Limits {
            bytes: number(bytes)?,
            entries: number(entries)?,
        },
    ))
}

fn unpack(input: impl io::Read, root: OwnedFd, limits: Limits) -> io::Result<Report> {
    let (input, went_in) = decode::Counted::new(input);
    let plain = decode::Bounded::new(decode::decoder(input)?, went_in, limits.bytes);
    let mut plain = HashingReader::new(plain);
    let mut reader = tarball::Reader::new(&mut plain);
    let mut applier = Applier::new(root, limits.entries);
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

/// Shuts the process in; what it can reach afterwards is the layer and its three streams.
fn confine(dir: &Path) -> io::Result<OwnedFd> {
    let limit = |max| Rlimit {
        current: Some(max),
        maximum: Some(max),
    };
    rustix::process::setrlimit(Resource::As, limit(MEMORY_MAX))?;
    rustix::process::setrlimit(Resource::Core, limit(0))?;
    rustix::process::umask(rustix::fs::Mode::empty());
    leave_network()?;
    rustix::process::chroot(dir)?;
    rustix::process::chdir("/")?;
    let keep = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::MKNOD
        | CapabilitySet::SETFCAP;
    drop_to(keep)?;
    Ok(File::open("/")?.into())
}

/// A network namespace with nothing in it: no address to reach, no abstract socket to find.
#[expect(
    deprecated,
    reason = "the successor is unsafe for CLONE_FILES, which is not asked for here"
)]
fn leave_network() -> io::Result<()> {
    Ok(rustix::thread::unshare(
        rustix::thread::UnshareFlags::NEWNET,
    )?)
}

fn drop_to(keep: CapabilitySet) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(
        Gid::from_raw(NOBODY),
        Gid::from_raw(NOBODY),
        Gid::from_raw(NOBODY),
    )?;
    rustix::thread::set_thread_res_uid(
        Uid::from_raw(NOBODY),
        Uid::from_raw(NOBODY),
        Uid::from_raw(NOBODY),
    )?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: keep,
        permitted: keep,
        inheritable: none,
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
