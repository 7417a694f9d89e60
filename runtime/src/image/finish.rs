//! What a layer's tree still needs when the helper is done with it, and only the daemon can do: marks, which take a
//! capability that the helper has not, and what depends on the layers below.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;

use super::digest::Digest;
use super::error::Error;
use super::mount::attributes::copy_attributes;
use super::mount::view::View;
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
    let dropped = drop_idle_whiteouts(root, lowers, &whiteouts, &opaque);
    dropped.map_err(Error::layer(chain_id, "whiteouts"))?;
    let implied = report.implied().map_err(Error::layer(chain_id, "report"))?;
    let opened = lowers.iter().map(|lower| Ok(File::open(lower)?.into()));
    let opened: io::Result<Vec<OwnedFd>> = opened.collect();
    let lowers = opened.map_err(Error::layer(chain_id, "open a lower layer"))?;
    let inherited = inherit(root, &lowers, &implied);
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
    lowers: &[PathBuf],
    whiteouts: &[CleanPath],
    opaque: &[CleanPath],
) -> io::Result<()> {
    if whiteouts.is_empty() {
        return Ok(());
    }
    let below = View::open(lowers)?;
    let opaque: HashSet<_> = opaque.iter().collect();
    for path in whiteouts {
        let Some((dir, name)) = path.split() else {
            continue;
        };
        let cut_off = opaque.contains(&CleanPath::default())
            || dir.prefixes().any(|parent| opaque.contains(&parent));
        if !cut_off && below.has(path.as_bytes())? {
            continue;
        }
        if let Ok(dir) = open_dir(root, &dir, ResolveFlags::empty()) {
            rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
        }
    }
    Ok(())
}

/// Gives directories that the archive only implied the attributes of the topmost lower one.
fn inherit(root: &OwnedFd, lowers: &[OwnedFd], implied: &[CleanPath]) -> rustix::io::Result<()> {
    for path in implied {
        let Ok(dir) = open_dir(root, path, ResolveFlags::empty()) else {
            continue;
        };
        for lower in lowers {
            match open_dir(lower, path, ResolveFlags::NO_SYMLINKS) {
                Ok(source) => {
                    copy_attributes(&source, &dir)?;
                    break;
                }
                Err(Errno::NOENT) => {}
                // Hidden or replaced there: what lies deeper is not this directory's past.
                Err(_) => break,
            }
        }
    }
    Ok(())
}
