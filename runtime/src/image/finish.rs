//! What a layer's tree still needs when the helper is done with it, and only the daemon can do: marks, which take a
//! capability that the helper has not, and what depends on the layers below.

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

/// Does what the report leaves to do upon `lowers`; whether the layer hides all of them.
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
    // The kernel looks a path up once for all of them, and remembers: a layer may have many whiteouts and implied
    // directories, far down, above many layers.
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

/// A name that later became something else than a directory needs no mark.
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

/// Removes whiteouts that hide nothing. Overlayfs filters whiteouts only where directories are
/// merged; elsewhere such a one would be listed as a name that nothing can be done with.
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
    // As one meets them in the tree: all that is below a directory comes next after it.
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

/// Whether something is at exactly this path, no symlink followed.
fn has(view: &OwnedFd, path: &CleanPath) -> rustix::io::Result<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(view, path.for_open(), flags, Mode::empty(), resolve) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives directories that the archive only implied the attributes that the layers below show.
fn inherit(root: &OwnedFd, below: &OwnedFd, implied: &[CleanPath]) -> rustix::io::Result<()> {
    for path in implied {
        let Ok(dir) = open_dir(root, path, ResolveFlags::empty()) else {
            continue;
        };
        // Where there is none, or another kind of file, this directory has no past.
        if let Ok(source) = open_dir(below, path, ResolveFlags::NO_SYMLINKS) {
            copy_attributes(&source, &dir)?;
        }
    }
    Ok(())
}
