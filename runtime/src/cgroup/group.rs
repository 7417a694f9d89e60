//! One cgroup: its directories in all hierarchies, and their creation.
//!
//! `Host::pod` turns CRI's `cgroup_parent` into the pod's cgroup, for both drivers.

use super::error::{Error, Result};
use super::host::{Hierarchy, Host, Mode, Place};
use super::path::CgroupPath;
use super::{io, unit};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Marks a directory in the unified tree that cairn made as a parent: `remove` may remove it when
/// it is empty, also after a restart, and never the kubelet's.
pub(super) const MADE_BY_US: &str = "trusted.cairn.made";
/// Attempts of `create` if parents are removed meanwhile.
const CREATE_ATTEMPTS: usize = 8;

/// A path below all hierarchies of a host. It opens no file and owns nothing: the pod's driver
/// decides who may call it.
#[derive(Debug, Clone)]
pub struct Cgroup {
    pub(super) host: Host,
    pub(super) path: CgroupPath,
}

impl Host {
    /// The cgroup at `path`; makes nothing.
    pub fn cgroup(&self, path: CgroupPath) -> Cgroup {
        let host = self.clone();
        Cgroup { host, path }
    }

    /// The pod level cgroup: the kubelet's `cgroup_parent` or, if the request has none, the pod's
    /// own cgroup in the default parent.
    ///
    /// # Errors
    /// `BadPath`, or `cgroup_parent` is for the other driver.
    pub fn pod(&self, cgroup_parent: &str, default_parent: &str, pod_id: &str) -> Result<Cgroup> {
        let parent = || cgroup_parent.to_owned();
        let path = match (self.systemd(), cgroup_parent) {
            (None, "") => CgroupPath::parse(default_parent)?.child(pod_id)?,
            (Some(_), "") => unit::slice_for_pod(default_parent, pod_id)?,
            (None, slice) if unit::is_slice(slice) => {
                return Err(Error::NotSystemd { parent: parent() });
            }
            (None, path) => CgroupPath::parse(path)?,
            (Some(_), slice) if unit::is_slice(slice) => unit::slice_of_parent(slice)?,
            (Some(_), _) => return Err(Error::NotCgroupfs { parent: parent() }),
        };
        Ok(self.cgroup(path))
    }

    /// `<parent>/<name>`: the leaf of a container or of the pause process.
    pub fn container(&self, parent: &str, name: &str) -> Result<Cgroup> {
        Ok(self.cgroup(CgroupPath::parse(parent)?.child(name)?))
    }
}

impl Cgroup {
    pub fn path(&self) -> &CgroupPath {
        &self.path
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn child(&self, name: &str) -> Result<Self> {
        Ok(self.host.cgroup(self.path.child(name)?))
    }

    /// The directory in the unified tree, if any.
    pub fn unified_dir(&self) -> Option<PathBuf> {
        self.host.unified().map(|u| self.path.below(&u.mount))
    }

    /// The directory with `controller`'s files, in either tree.
    pub fn dir_of(&self, controller: &str) -> Option<PathBuf> {
        self.host.place(controller).map(|place| match place {
            Place::V1(mount) | Place::V2(mount) => self.path.below(mount),
        })
    }

    /// Every directory of this cgroup, v1 hierarchies first.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let v1 = self.host.v1().iter().map(|h| self.path.below(&h.mount));
        v1.chain(self.unified_dir()).collect()
    }

    /// Makes the cgroup and its missing parents in every hierarchy; existing ones stay. On v1 each
    /// new cpuset is copied from its parent, on v2 controllers are delegated.
    ///
    /// # Errors
    /// On failure everything that this call made is removed.
    pub fn create(&self) -> Result<()> {
        let mut made = Vec::new();
        self.create_all(&mut made).inspect_err(|_| {
            // Children were pushed after their parents. A directory that is in use stays.
            for dir in made.iter().rev() {
                let _ = std::fs::remove_dir(dir);
            }
        })
    }

    fn create_all(&self, made: &mut Vec<PathBuf>) -> Result<()> {
        for hierarchy in self.host.v1() {
            self.make_dirs(&hierarchy.mount, made)?;
            if hierarchy.has("cpuset") {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    inherit_cpuset(&hierarchy.mount, &self.path, file)?;
                }
            }
        }
        if let Some(unified) = self.host.unified() {
            self.make_dirs(&unified.mount, made)?;
            // On hybrid a controller is delegated only when a limit needs it.
            if self.host.mode() == Mode::V2 {
                delegate(unified, &self.path, &unified.controllers)?;
            }
        }
        Ok(())
    }

    /// Makes it in one hierarchy, and marks the parents that it made.
    fn make_dirs(&self, mount: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
        let from = made.len();
        let result = make_dirs(mount, &self.path, made);
        let leaf = self.path.below(mount);
        made[from..]
            .iter()
            .filter(|dir| **dir != leaf)
            .for_each(|dir| mark(dir));
        result
    }
}

/// Makes `path` below `mount`, deepest first: usually only the leaf is missing.
fn make_dirs(mount: &Path, path: &CgroupPath, made: &mut Vec<PathBuf>) -> Result<()> {
    let mut last = None;
    for _ in 0..CREATE_ATTEMPTS {
        match make_below(mount, path, made) {
            Ok(()) => return Ok(()),
            // A parent vanished between two steps: another pod removed it as empty.
            Err(e) if e.kind() == ErrorKind::NotFound && mount.is_dir() => last = Some(e),
            Err(e) => {
                last = Some(e);
                break;
            }
        }
    }
    let source = last.unwrap_or_else(|| ErrorKind::NotFound.into());
    Err(Error::io(path.below(mount), "make the directory", source))
}

fn make_below(mount: &Path, path: &CgroupPath, made: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let dir = path.below(mount);
    match std::fs::create_dir(&dir) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let Some(parent) = path.parent() else {
                return Err(e);
            };
            make_below(mount, &parent, made)?;
            match std::fs::create_dir(&dir) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
                result => result.map(|()| made.push(dir)),
            }
        }
        result => result.map(|()| made.push(dir)),
    }
}

/// v1: a new cpuset is empty and takes no task before it has cpus and mems. Parents are filled too:
/// another pod may have just made one, or a crash may have left it empty.
fn inherit_cpuset(mount: &Path, path: &CgroupPath, file: &str) -> Result<String> {
    let own = path.below(mount).join(file);
    let value = io::read_if_there(&own)?.unwrap_or_default();
    if !value.is_empty() {
        return Ok(value);
    }
    let value = match path.parent() {
        Some(parent) => inherit_cpuset(mount, &parent, file)?,
        None => io::read_if_there(&mount.join(file))?.unwrap_or_default(),
    };
    io::write(&own, &value).map_err(|source| Error::io(own, "copy the parent's cpuset", source))?;
    Ok(value)
}

/// Enables `wanted` in every directory above the cgroup at `path`, from the root down. A controller
/// that cannot be enabled is skipped: the limit that needs it reports it.
///
/// # Errors
/// A directory on the way has processes, so that it cannot delegate controllers.
pub(super) fn delegate(unified: &Hierarchy, path: &CgroupPath, wanted: &[String]) -> Result<()> {
    let mut above: Vec<PathBuf> = std::iter::successors(path.parent(), CgroupPath::parent)
        .map(|p| p.below(&unified.mount))
        .collect();
    above.push(unified.mount.clone());
    for dir in above.iter().rev() {
        let control = dir.join("cgroup.subtree_control");
        let enabled = io::read_if_there(&control)?.unwrap_or_default();
        let offered = io::read_if_there(&dir.join("cgroup.controllers"))?.unwrap_or_default();
        let has = |list: &str, name: &str| list.split_whitespace().any(|word| word == name);
        let missing: Vec<String> = wanted
            .iter()
            .filter(|c| has(&offered, c) && !has(&enabled, c))
            .map(|c| format!("+{c}"))
            .collect();
        if missing.is_empty() || io::write(&control, &missing.join(" ")).is_ok() {
            continue;
        }
        // All at once was refused: one at a time enables the others.
        for one in &missing {
            match io::write(&control, one) {
                Err(source) if source.raw_os_error() == Some(libc::EBUSY) => {
                    let step = "enable controllers (the cgroup has processes)";
                    return Err(Error::io(control, step, source));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Best effort: without the mark an empty parent stays behind, which does no harm.
pub(super) fn mark(dir: &Path) {
    let _ = rustix::fs::lsetxattr(dir, MADE_BY_US, b"1", rustix::fs::XattrFlags::empty());
}

pub(super) fn is_marked(dir: &Path) -> bool {
    let mut buffer = [0_u8; 8];
    rustix::fs::lgetxattr(dir, MADE_BY_US, &mut buffer).is_ok()
}
