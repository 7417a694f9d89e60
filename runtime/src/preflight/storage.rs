//! Checks of the file systems of `root` and `state`, and of overlayfs on them.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use cni_shim::namespaces::{HelperCommand, IdMap, Mappings, user_namespace};
use rustix::fs::{FileType, StatVfsMountFlags, statvfs};

use super::finding::Finding;
use crate::image::{self, Userns};

/// A pod's id range in the trial.
const MAPPING: IdMap = IdMap {
    container: 0,
    host: 1 << 16,
    size: 1 << 16,
};
const LITTLE: u64 = 1 << 30;

/// A directory on the file system of `root`, which may not exist yet. Dropping it removes it. If
/// this process is killed, the next daemon removes what is below `images/tmp`.
pub(super) struct Place {
    dir: PathBuf,
    made: io::Result<()>,
}

impl Place {
    pub(super) fn on(root: &Path) -> Self {
        let tmp = root.join("images/tmp");
        let parent = if tmp.is_dir() {
            tmp
        } else {
            existing(root).to_owned()
        };
        let dir = parent.join(format!(".cairn-check-{}", std::process::id()));
        let made = fs::create_dir(&dir);
        Self { dir, made }
    }

    /// The reason if a trial says nothing about the file system: it is full.
    fn full(&self) -> Option<String> {
        const ENOUGH: u64 = 1 << 20;
        const FILES: u64 = 16;
        let on = existing(&self.dir);
        let stat = statvfs(on).ok()?;
        // A file system without a size, like ramfs, reports 0 for everything.
        let full = (stat.f_blocks > 0 && stat.f_bavail.saturating_mul(stat.f_frsize) < ENOUGH)
            || (stat.f_files > 0 && stat.f_favail < FILES);
        full.then(|| format!("no room for a trial in {}", on.display()))
    }

    fn made(&self) -> Result<&Path, String> {
        match &self.made {
            Ok(()) => Ok(&self.dir),
            Err(e) => Err(format!("make {}: {e}", self.dir.display())),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.made.is_ok()
            && let Err(error) = fs::remove_dir_all(&self.dir)
        {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove the directory of a trial");
        }
    }
}

/// The path itself, or its nearest existing ancestor.
fn existing(path: &Path) -> &Path {
    path.ancestors()
        .find(|dir| dir.is_dir())
        .unwrap_or(Path::new("/"))
}

pub(super) fn root(path: &Path) -> Finding {
    on_filesystem("root", path, |flags, free| {
        if free < LITTLE {
            return Some(format!(
                "images and containers need room: less than {} MiB are free",
                LITTLE >> 20
            ));
        }
        let nodev = flags.contains(StatVfsMountFlags::NODEV);
        nodev.then(|| "device nodes in images do not work: mount it without nodev".to_owned())
    })
}

pub(super) fn state(path: &Path) -> Finding {
    // Nothing there is executed; it has no device nodes or setuid programs.
    on_filesystem("state", path, |_, _| None)
}

fn on_filesystem(
    what: &'static str,
    path: &Path,
    cost: impl Fn(StatVfsMountFlags, u64) -> Option<String>,
) -> Finding {
    let on = existing(path);
    let stat = match statvfs(on) {
        Ok(stat) => stat,
        Err(e) => return Finding::fails(what, format!("{}: {e}", on.display()), "set another one"),
    };
    let flags = [
        (StatVfsMountFlags::RDONLY, "read-only"),
        (StatVfsMountFlags::NOEXEC, "noexec"),
        (StatVfsMountFlags::NOSUID, "nosuid"),
        (StatVfsMountFlags::NODEV, "nodev"),
    ];
    let set = flags.iter().filter(|(flag, _)| stat.f_flag.contains(*flag));
    let set: String = set.map(|(_, name)| format!(", {name}")).collect();
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let found = format!("{}{set}, {} MiB free", path.display(), free >> 20);
    if stat.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Finding::fails(what, found, format!("set `{what}` to a writable directory"));
    }
    match cost(stat.f_flag, free) {
        None => Finding::ok(what, found),
        Some(cost) => Finding::limited(what, found, cost),
    }
}

pub(super) fn overlay(place: &Place) -> Finding {
    const WHAT: &str = "overlayfs";
    let dir = match place.made() {
        Ok(dir) => dir,
        Err(why) => return Finding::limited(WHAT, why, "could not be tested"),
    };
    let elsewhere = "set `root` to a directory on ext4, xfs or btrfs";
    if let Err(e) = image::try_root_in(dir, None) {
        return match place.full() {
            Some(why) => Finding::limited(WHAT, why, "could not be tested"),
            None => Finding::fails(WHAT, refusal(&e), elsewhere),
        };
    }
    match has_entry_types(dir) {
        Ok(true) => Finding::ok(WHAT, "mounted in a trial on `root`"),
        Ok(false) => Finding::fails(
            WHAT,
            "the file system of `root` does not report types of directory entries (d_type)",
            format!("{elsewhere}; xfs must be made with ftype=1"),
        ),
        Err(e) => Finding::limited(WHAT, e.to_string(), "d_type could not be tested"),
    }
}

/// Without it overlayfs shows files that an upper layer has removed.
fn has_entry_types(dir: &Path) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(fs::File::open(dir)?)? {
        if entry?.file_type() == FileType::Unknown {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The result of mounting a container's root with shifted owners.
pub(super) enum Trial {
    Works,
    /// Pods with a user namespace are rejected, for this reason.
    Refused(String),
    /// Left to each pod: a daemon started on a full disk would reject them for its lifetime.
    Untested(String),
}

pub(super) fn user_namespaces(place: &Place, program: &Path) -> Trial {
    match (shifted_root(place, program), place.full()) {
        (Ok(()), _) => Trial::Works,
        (Err(_), Some(full)) => Trial::Untested(full),
        (Err(why), None) => Trial::Refused(why),
    }
}

fn shifted_root(place: &Place, program: &Path) -> Result<(), String> {
    let dir = place.made()?;
    let mappings = Mappings {
        uids: vec![MAPPING],
        gids: vec![MAPPING],
    };
    let helper = HelperCommand {
        program: program.to_owned(),
        args: vec!["sandbox".into()],
    };
    let namespace: OwnedFd = user_namespace(&mappings, &helper)
        .map_err(|e| format!("make one: {e} (see sysctl user.max_user_namespaces)"))?;
    image::try_root_in(dir, Some(Userns::from(namespace))).map_err(|e| refusal(&e))
}

/// Omits the trial's directory, which is removed.
fn refusal(error: &image::Error) -> String {
    match error {
        image::Error::Mount { step, cause, .. } => format!("overlayfs on `root`: {step}: {cause}"),
        other => other.to_string(),
    }
}

pub(super) fn shown(trial: &Trial) -> Finding {
    const WHAT: &str = "user namespaces";
    match trial {
        Trial::Untested(why) => Finding::limited(WHAT, why, "could not be tested"),
        Trial::Works => Finding::ok(WHAT, "a root with shifted owners was mounted in a trial"),
        Trial::Refused(why) => Finding::limited(
            WHAT,
            why,
            "pods with a user namespace are refused: they need Linux 5.19, and a file system \
             under `root` that does idmapped mounts",
        ),
    }
}
