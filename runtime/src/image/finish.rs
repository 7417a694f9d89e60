//! Completes a layer's tree after the helper: marks, for which the helper lacks a capability, and
//! attributes that depend on the layers below.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;

use super::digest::Digest;
use super::error::Error;
use super::mount::attributes::copy_attributes;
use super::mount::overlay::view_of;
use super::unpack::Report;
use super::unpack::path::CleanPath;

/// Completes the tree upon `lowers`. Returns whether the layer hides all of them.
pub(super) fn finish(
    chain_id: &Digest,
    root: &OwnedFd,
    lowers: &[PathBuf],
    report: &Report,
) -> Result<bool, Error> {
    let opaque = report.opaque().map_err(Error::layer(chain_id, "report"))?;
    let marked = mark_opaque(root, &opaque);
    marked.map_err(Error::layer(chain_id, "mark opaque directories"))?;
    let whiteouts = report
        .whiteouts()
        .map_err(Error::layer(chain_id, "report"))?;
    let implied = report.implied().map_err(Error::layer(chain_id, "report"))?;
    // One view for all look-ups, which the kernel caches: a layer may have many whiteouts and
    // implied directories, far down, above many layers.
    let below = view_of(lowers.to_vec(), "the layers below")?;
    let dropped = drop_idle_whiteouts(root, &below, &whiteouts, &opaque);
    dropped.map_err(Error::layer(chain_id, "whiteouts"))?;
    let inherited = inherit(root, &below, &implied);
    inherited.map_err(Error::layer(chain_id, "inherit attributes"))?;
    Ok(opaque.iter().any(CleanPath::is_root))
}

fn open_dir(
    root: &OwnedFd,
    path: &CleanPath,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = resolve | ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path.for_open(), flags, Mode::empty(), resolve)
}

/// Marks directories as opaque. A name that is no longer a directory needs no mark.
fn mark_opaque(root: &OwnedFd, dirs: &[CleanPath]) -> rustix::io::Result<()> {
    for path in dirs {
        match open_dir(root, path, ResolveFlags::empty()) {
            Ok(dir) => {
                let name = "trusted.overlay.opaque";
                rustix::fs::fsetxattr(&dir, name, b"y", XattrFlags::empty())?;
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes whiteouts that hide nothing. Overlayfs filters whiteouts only where it merges
/// directories; elsewhere it would list an unusable name.
fn drop_idle_whiteouts(
    root: &OwnedFd,
    below: &OwnedFd,
    whiteouts: &[CleanPath],
    opaque: &[CleanPath],
) -> rustix::io::Result<()> {
    let marks = opaque.iter().map(|path| (path, true));
    let mut order: Vec<_> = whiteouts
        .iter()
        .map(|path| (path, false))
        .chain(marks)
        .collect();
    // In tree order: a directory's content comes right after it.
    order.sort_by(|(a, _), (b, _)| names(a).cmp(names(b)));
    let mut hidden: Option<&CleanPath> = None;
    for (path, is_opaque) in order {
        let cut_off = hidden.is_some_and(|dir| is_below(path, dir));
        if is_opaque && !cut_off {
            hidden = Some(path);
        }
        let Some((dir, name)) = path.split().filter(|_| !is_opaque) else {
            continue;
        };
        if !cut_off && has(below, path)? {
            continue;
        }
        if let Ok(dir) = open_dir(root, &dir, ResolveFlags::empty()) {
            rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
        }
    }
    Ok(())
}

fn names(path: &CleanPath) -> impl Iterator<Item = &[u8]> {
    path.as_bytes().split(|b| *b == b'/')
}

fn is_below(path: &CleanPath, dir: &CleanPath) -> bool {
    let rest = path.as_bytes().strip_prefix(dir.as_bytes());
    rest.is_some_and(|rest| !rest.is_empty() && (dir.is_root() || rest[0] == b'/'))
}

/// Whether a file of any type is at exactly this path, without following symlinks.
fn has(view: &OwnedFd, path: &CleanPath) -> rustix::io::Result<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(view, path.for_open(), flags, Mode::empty(), resolve) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives directories that the archive only implies the attributes of the layers below.
fn inherit(root: &OwnedFd, below: &OwnedFd, implied: &[CleanPath]) -> rustix::io::Result<()> {
    for path in implied {
        let Ok(dir) = open_dir(root, path, ResolveFlags::empty()) else {
            continue;
        };
        // Without a lower directory there is nothing to inherit.
        if let Ok(source) = open_dir(below, path, ResolveFlags::NO_SYMLINKS) {
            copy_attributes(&source, &dir)?;
        }
    }
    Ok(())
}
