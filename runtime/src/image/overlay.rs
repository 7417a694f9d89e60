//! The overlay mount itself: many layers, owners shifted or not, new kernels and old (CRI-450).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
};

use super::{Error, sys};

/// Longest string `fsconfig` takes.
const FSCONFIG_MAX: usize = 255;
/// Longest options string of `mount`, with its NUL.
const OPTIONS_MAX: usize = 4096;

/// A pod's user namespace, as lower trees and volumes are shifted by it (CRI-452).
pub type Userns = Arc<OwnedFd>;

/// What overlayfs is given.
pub struct Overlay<'a> {
    /// Topmost first.
    pub lowers: Vec<PathBuf>,
    /// Upper and work directory; none for a read-only view.
    pub upper: Option<(&'a Path, &'a Path)>,
    pub userns: Option<Userns>,
}

impl Overlay<'_> {
    /// Mounts the view at `target`. `lowerdir+` takes any number of layers; kernels without it get
    /// one options string, short because it names layers by descriptor.
    pub fn mount_at(&self, target: &Path) -> Result<(), Error> {
        let fail = |step: &'static str| {
            let what = target.display().to_string();
            move |e: io::Error| Error::Mount {
                what: what.clone(),
                step,
                cause: e.to_string(),
            }
        };
        let lowers = self.open_lowers().map_err(fail("open layers"))?;
        match self.new_api(&lowers) {
            Ok(mount) => rustix::mount::move_mount(
                &mount,
                "",
                CWD,
                target,
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
            )
            .map_err(|e| fail("attach")(e.into())),
            Err(Step::NoLowerdirPlus) => self.old_api(&lowers, target).map_err(fail("mount")),
            Err(Step::Failed(step, e)) => Err(fail(step)(e)),
        }
    }

    /// Descriptors of the lower trees; detached and shifted ones in a user namespace.
    fn open_lowers(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |path: &PathBuf| match &self.userns {
            None => Ok(rustix::fs::open(
                path,
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            )?),
            Some(userns) => shifted(path, userns),
        };
        self.lowers.iter().map(open).collect()
    }

    fn new_api(&self, lowers: &[OwnedFd]) -> Result<OwnedFd, Step> {
        let fs = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(|e| Step::Failed("open overlayfs", e.into()))?;
        let set = |key: &'static str, value: &str| {
            rustix::mount::fsconfig_set_string(fs.as_fd(), key, value)
                .map_err(|e| Step::Failed(key, explain(&fs, e)))
        };
        set("source", "cairn")?;
        for (at, (fd, path)) in lowers.iter().zip(&self.lowers).enumerate() {
            let text = match path.to_str() {
                Some(path) if self.userns.is_none() && path.len() <= FSCONFIG_MAX => {
                    path.to_owned()
                }
                _ => by_descriptor(fd),
            };
            match rustix::mount::fsconfig_set_string(fs.as_fd(), "lowerdir+", &*text) {
                Err(Errno::INVAL) if at == 0 => return Err(Step::NoLowerdirPlus),
                other => other.map_err(|e| Step::Failed("add a layer", explain(&fs, e)))?,
            }
        }
        let mut held = Vec::new();
        if let Some((upper, work)) = self.upper {
            for (key, path) in [("upperdir", upper), ("workdir", work)] {
                let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                    .map_err(|e| Step::Failed(key, e.into()))?;
                match path.to_str() {
                    Some(path) if path.len() <= FSCONFIG_MAX => set(key, path)?,
                    _ => set(key, &by_descriptor(&fd))?,
                }
                held.push(fd);
            }
        }
        set("index", "off")?;
        if self.upper.is_some() {
            // Without it every unmount flushes the whole file system below (tens of milliseconds and
            // more), for a tree that is thrown away. Kernels before 5.10 do not know it.
            let _ = rustix::mount::fsconfig_set_flag(fs.as_fd(), "volatile");
        }
        rustix::mount::fsconfig_create(fs.as_fd())
            .map_err(|e| Step::Failed("create", explain(&fs, e)))?;
        let attributes = match self.upper {
            Some(_) => MountAttrFlags::empty(),
            None => MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV,
        };
        rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .map_err(|e| Step::Failed("mount", e.into()))
    }

    fn old_api(&self, lowers: &[OwnedFd], target: &Path) -> io::Result<()> {
        let names: Vec<_> = lowers.iter().map(by_descriptor).collect();
        let mut options = format!("index=off,lowerdir={}", names.join(":"));
        let mut held = Vec::new();
        if let Some((upper, work)) = self.upper {
            for (key, path) in [("upperdir", upper), ("workdir", work)] {
                let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
                options += &format!(",{key}={}", by_descriptor(&fd));
                held.push(fd);
            }
        }
        if options.len() >= OPTIONS_MAX {
            return Err(io::Error::other("too many layers for this kernel"));
        }
        let flags = match self.upper {
            Some(_) => MountFlags::empty(),
            None => MountFlags::RDONLY | MountFlags::NODEV,
        };
        let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
        Ok(rustix::mount::mount(
            "cairn",
            target,
            "overlay",
            flags,
            options.as_c_str(),
        )?)
    }
}

enum Step {
    /// A kernel before 6.7.
    NoLowerdirPlus,
    Failed(&'static str, io::Error),
}

fn by_descriptor(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A detached copy of a tree, its owners shifted.
pub fn shifted(path: &Path, userns: &Userns) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, path, flags)?;
    sys::idmap(tree.as_fd(), userns.as_fd())?;
    Ok(tree)
}

/// The kernel's own words on a failed step, which it leaves in the descriptor.
fn explain(fs: &OwnedFd, e: Errno) -> io::Error {
    let cause = io::Error::from(e);
    let mut words = [0; 512];
    let Ok(n) = fs
        .try_clone()
        .and_then(|fs| File::from(fs).read(&mut words))
    else {
        return cause;
    };
    let words = String::from_utf8_lossy(&words[..n]);
    io::Error::new(cause.kind(), format!("{cause} ({})", words.trim()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::mount::UnmountFlags;

    use super::*;

    #[test]
    fn kernels_without_lowerdir_plus_get_one_string_whatever_the_paths_are_called() {
        let tmp = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = tmp.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let lowers = vec![make(&format!("a:b,{}", "x".repeat(200))), make("c")];
        fs::write(lowers[0].join("f"), "top").unwrap();
        fs::write(lowers[1].join("f"), "low").unwrap();
        let (upper, work, merged) = (make("upper"), make("work"), make("merged"));
        let overlay = Overlay {
            lowers,
            upper: Some((&upper, &work)),
            userns: None,
        };
        overlay
            .old_api(&overlay.open_lowers().unwrap(), &merged)
            .unwrap();
        let shown = fs::read_to_string(merged.join("f"));
        rustix::mount::unmount(&merged, UnmountFlags::DETACH).unwrap();
        assert_eq!(shown.unwrap(), "top");
    }

    #[test]
    fn a_failed_mount_says_why_in_the_kernels_words() {
        let tmp = tempfile::tempdir().unwrap();
        let (lower, file) = (tmp.path().join("lower"), tmp.path().join("file"));
        fs::create_dir(&lower).unwrap();
        fs::write(&file, "no directory").unwrap();
        let overlay = Overlay {
            lowers: vec![lower, file],
            upper: None,
            userns: None,
        };
        let e = overlay.mount_at(tmp.path()).unwrap_err().to_string();
        assert!(e.contains("overlay") && e.contains("director"), "{e}");
    }
}
