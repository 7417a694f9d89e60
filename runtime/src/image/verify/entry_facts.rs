//! Facts about one entry of a layer's tree, by its directory's descriptor and its name. Follows no
//! link, and opens regular files only.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::sum;
use crate::image::fsutil::{self, filled, is};

/// Facts about one entry. Times are left out: no program fails for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Type and permissions.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes of a file or of a symlink's target; the number of a device; otherwise 0.
    pub size: u64,
    /// Sum of the target or, unless the caller computes it, of the content.
    pub content: u32,
    /// Sum of its extended attributes; 0 for none.
    pub attributes: u32,
}

impl Facts {
    /// Facts of an entry with this `stat`, without a file's content.
    pub(crate) fn look(dir: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> io::Result<Self> {
        let mut facts = Self {
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            attributes: attributes(dir, name)?,
            ..Self::default()
        };
        match facts.kind() {
            FileType::RegularFile => facts.size = stat.st_size.unsigned_abs(),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                facts.size = target.as_bytes().len() as u64;
                facts.content = sum::of(target.as_bytes());
            }
            FileType::CharacterDevice | FileType::BlockDevice => facts.size = stat.st_rdev,
            _ => {}
        }
        Ok(facts)
    }

    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// Whether its content must be read.
    pub(crate) fn has_content(&self) -> bool {
        self.kind() == FileType::RegularFile && self.size > 0
    }

    /// The first difference from `want`, except in the content of files, in one line.
    pub(crate) fn differs(&self, want: &Facts) -> Option<String> {
        if self.kind() != want.kind() {
            let (is, was) = (kind(self.kind()), kind(want.kind()));
            return Some(format!("is a {is}, and was a {was}"));
        }
        let is_link = self.kind() == FileType::Symlink;
        if is_link && (self.size, self.content) != (want.size, want.content) {
            return Some("points elsewhere than it did".to_owned());
        }
        if self.kind() == FileType::RegularFile && self.size != want.size {
            return Some(format!("has {} bytes of {}", self.size, want.size));
        }
        if self.size != want.size {
            return Some("is another device than it was".to_owned());
        }
        let owner = |facts: &Facts| format!("{}:{}", facts.uid, facts.gid);
        let (is, was) = (owner(self), owner(want));
        if is != was {
            return Some(format!("belongs to {is}, and did to {was}"));
        }
        if self.mode != want.mode {
            let (is, was) = (self.mode & 0o7777, want.mode & 0o7777);
            return Some(format!("has mode {is:o}, and had {was:o}"));
        }
        let differ = self.attributes != want.attributes;
        differ.then(|| "has other extended attributes than it had".to_owned())
    }
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        _ => "socket",
    }
}

/// The sum of an entry's extended attributes, in the order of their names. Labels (`security.*`)
/// are the host's, except capabilities.
fn attributes(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<u32> {
    // No call takes a directory's descriptor and a name; this path does the same, unfollowed.
    let shown = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string());
    let path: PathBuf = shown.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
    let all = match filled(|buffer| rustix::fs::llistxattr(&path, buffer)) {
        Err(Errno::OPNOTSUPP) => return Ok(0),
        other => other?,
    };
    let mut names: Vec<&[u8]> = all.split(|byte| *byte == 0).collect();
    names.retain(|name| {
        !name.is_empty() && (!name.starts_with(b"security.") || *name == b"security.capability")
    });
    names.sort_unstable();
    let mut summed = Vec::new();
    for name in names {
        let value = filled(|buffer| rustix::fs::lgetxattr(&path, name, buffer))?;
        summed.extend_from_slice(name);
        summed.push(0);
        summed.extend_from_slice(&(value.len() as u64).to_le_bytes());
        summed.extend_from_slice(&value);
    }
    Ok(if summed.is_empty() {
        0
    } else {
        sum::of(&summed)
    })
}

/// Opens a regular file without waiting; a file of another type is an error.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    let file = fsutil::open_file(dir, name)?;
    if is(&rustix::fs::fstat(&file)?, FileType::RegularFile) {
        Ok(file)
    } else {
        Err(io::Error::other("is not a regular file any more"))
    }
}
