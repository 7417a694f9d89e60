//! Metadata of an entry: owner, attributes, mode, times (CRI-443).

use std::fs::File;
use std::io::{self, Read, Result, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use rustix::fs::{Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::tarball::Entry;

pub(super) const PAGE: u64 = 4096;

pub(super) fn failed(step: &'static str) -> impl Fn(Errno) -> io::Error {
    move |e| {
        let cause = io::Error::from(e);
        io::Error::new(cause.kind(), format!("{step}: {cause}"))
    }
}

/// Sets owner, then attributes (a new owner drops capabilities), then mode (it drops setuid too).
pub(super) fn metadata(entry: &Entry, fd: impl AsFd) -> Result<()> {
    let (uid, gid) = owner(entry);
    rustix::fs::fchown(&fd, uid, gid).map_err(failed("set the owner"))?;
    attributes(entry, false, |key, value| {
        rustix::fs::fsetxattr(&fd, key, value, XattrFlags::empty())
    })?;
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(entry.mode)).map_err(failed("set the mode"))
}

/// Sets each attribute by `set`; `special`: neither a file nor a directory.
pub(super) fn attributes(
    entry: &Entry,
    special: bool,
    set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>,
) -> Result<()> {
    let mut applied = entry.xattrs.iter().filter(|(key, _)| is_applied(key));
    applied.try_for_each(|(key, value)| tolerate(key, set(key, value), special))
}

/// `trusted.*` and `user.overlay.*` control overlayfs (a redirect would reach into other layers):
/// an image must not set them.
fn is_applied(key: &[u8]) -> bool {
    !key.starts_with(b"trusted.") && !key.starts_with(b"user.overlay.")
}

/// Ignores attributes that the file system does not support, as every runtime does (CRI-443).
fn tolerate(key: &[u8], set: rustix::io::Result<()>, special: bool) -> Result<()> {
    match set {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(Errno::PERM) if special && key.starts_with(b"user.") => Ok(()),
        // Labels are the host's; without the capability for them they are not set.
        Err(Errno::PERM) if key.starts_with(b"security.selinux") => Ok(()),
        Err(e) => {
            let (key, cause) = (String::from_utf8_lossy(key), io::Error::from(e));
            Err(io::Error::other(format!("set attribute {key}: {cause}")))
        }
    }
}

pub(super) fn owner(entry: &Entry) -> (Option<Uid>, Option<Gid>) {
    (
        Some(Uid::from_raw(entry.uid)),
        Some(Gid::from_raw(entry.gid)),
    )
}

pub(super) fn times(entry: &Entry) -> Timestamps {
    let time = Timespec {
        tv_sec: entry.mtime.0,
        tv_nsec: i64::from(entry.mtime.1),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Copies a file's content, with holes for zero chunks. Returns bytes on disk.
pub(super) fn copy_sparsely(data: &mut impl Read, file: &mut File, size: u64) -> Result<u64> {
    let mut buffer = vec![0; 128 * 1024];
    let mut left = size;
    let mut on_disk = 0;
    let mut hole_at_end = false;
    while left > 0 {
        let want = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        data.read_exact(&mut buffer[..want])?;
        let chunk = &buffer[..want];
        left -= want as u64;
        hole_at_end = want as u64 >= PAGE && chunk.iter().all(|b| *b == 0);
        if hole_at_end {
            file.seek(SeekFrom::Current(i64::try_from(want).unwrap_or(i64::MAX)))?;
        } else {
            file.write_all(chunk)?;
            on_disk += (want as u64).next_multiple_of(PAGE);
        }
    }
    if hole_at_end {
        file.set_len(size)?;
    }
    Ok(on_disk)
}
