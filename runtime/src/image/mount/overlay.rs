//! The overlay mount itself: many layers, owners shifted or not, new kernels and old (CRI-450).
//!
//! | layers | kernel | how | where |
//! |---|---|---|---|
//! | as they are | from 6.7 | `fsopen`, a `lowerdir+` for each | nowhere: a detached mount |
//! | as they are | before | `mount`, one options string | a copy of the bare mount namespace |
//! | owners shifted | any | as above | a copy of the bare mount namespace |
//!
//! The options string has one page for all layers. It names them by descriptor, relative to a
//! working directory in /proc: five bytes a layer, and nothing in it needs escaping. Shifted layers
//! must be attached somewhere (kernels before 6.15 take no others); in a namespace that goes with its
//! thread nobody sees them, and no crash leaves them behind.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cairn_monitor::mount_tree;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags};

use crate::detached;
use crate::image::error::Error;

/// Longest string `fsconfig` takes.
const FSCONFIG_MAX: usize = 255;
/// Longest options string of `mount`, with its NUL.
const OPTIONS_MAX: usize = 4096;
/// What names in the options string are relative to.
const DESCRIPTORS: &str = "/proc/thread-self/fd";

/// A pod's user namespace, as lower trees and volumes are shifted by it (CRI-452).
pub type Userns = Arc<OwnedFd>;

/// What overlayfs is given.
pub(crate) struct Overlay<'a> {
    /// Topmost first.
    pub lowers: Vec<PathBuf>,
    /// Upper and work directory; none for a read-only view.
    pub upper: Option<(&'a Path, &'a Path)>,
    pub userns: Option<Userns>,
    /// SELinux label of all that is seen in it.
    pub label: Option<&'a str>,
    /// Where it is mounted.
    pub target: &'a Path,
}

/// A read-only view of these layers, topmost first, for the daemon alone: attached nowhere, and gone with its last
/// descriptor. `what` is for messages. One layer shows itself: it has no whiteouts.
pub(crate) fn view_of(lowers: Vec<PathBuf>, what: &str) -> Result<OwnedFd, Error> {
    let overlay = Overlay {
        lowers,
        upper: None,
        userns: None,
        label: None,
        target: Path::new(what),
    };
    match &overlay.lowers[..] {
        [only] => open_path(only).map_err(overlay.failed("open layers")),
        _ => overlay.make(supported()),
    }
}

/// How the kernel is told the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Api {
    LowerdirPlus,
    Options,
}

impl Overlay<'_> {
    pub(crate) fn mount(&self) -> Result<(), Error> {
        self.mount_by(supported())
    }

    /// Whether it can be mounted; nothing is.
    pub(crate) fn try_out(&self) -> Result<(), Error> {
        self.make(supported()).map(drop)
    }

    fn mount_by(&self, api: Api) -> Result<(), Error> {
        let tree = self.make(api)?;
        mount_tree::attach(&tree, self.target).map_err(self.failed("attach"))
    }

    /// The view, attached nowhere.
    fn make(&self, api: Api) -> Result<OwnedFd, Error> {
        if let Some((_, work)) = self.upper {
            // A volatile mount leaves a mark that forbids the next; here the next is only a start
            // that is tried again, of a tree nobody relies on after a crash.
            let mark = work.join("work/incompat");
            crate::remove::remove_tree_at(&mark).map_err(self.failed("clear the mark"))?;
        }
        if api == Api::LowerdirPlus && self.userns.is_none() {
            let lowers = self.open_lowers().map_err(self.failed("open layers"))?;
            let upper = self.upper.map(|(upper, work)| {
                let open = |path: &Path| io::Result::Ok((Some(path.to_owned()), open_path(path)?));
                io::Result::Ok([open(upper)?, open(work)?])
            });
            let upper = upper
                .transpose()
                .map_err(self.failed("open the upper directory"))?;
            return self.detached(&lowers, upper.as_ref());
        }
        let step = match self.userns {
            Some(_) => "shift layers",
            None => "bind layers",
        };
        let trees = self.copy_lowers().map_err(self.failed(step))?;
        let upper = self.upper.map(|(upper, _)| {
            // Upper and work directory must be on one mount.
            detached::copy(upper.parent().unwrap_or(upper), None)
        });
        let upper = upper
            .transpose()
            .map_err(self.failed("bind the upper directory"))?;
        let made = detached::in_bare_namespace(|| Ok(self.in_bare_namespace(api, &trees, upper)));
        made.map_err(self.failed("make a mount namespace"))?
    }

    /// The layers, topmost first, and the directory of upper and work directory, all of them attached nowhere yet.
    fn in_bare_namespace(
        &self,
        api: Api,
        lowers: &[OwnedFd],
        above: Option<OwnedFd>,
    ) -> Result<OwnedFd, Error> {
        let free = Path::new(detached::FREE);
        for tree in lowers.iter().chain(&above) {
            mount_tree::attach(tree, free).map_err(self.failed("attach layers"))?;
        }
        let upper = above.zip(self.upper).map(|(above, (upper, work))| {
            let open = |path: &Path| {
                let name = path.file_name().unwrap_or_default();
                let flags = OFlags::PATH | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&above, name, flags, Mode::empty())?;
                io::Result::Ok((None, fd))
            };
            io::Result::Ok([open(upper)?, open(work)?])
        });
        let upper = upper
            .transpose()
            .map_err(self.failed("open the upper directory"))?;
        if api == Api::LowerdirPlus {
            return self.detached(lowers, upper.as_ref());
        }
        mount_with_options(lowers, upper.as_ref(), self.label, free)
            .map_err(self.failed("mount overlayfs"))?;
        mount_tree::copy(free, false).map_err(self.failed("detach"))
    }

    fn open_lowers(&self) -> io::Result<Vec<OwnedFd>> {
        self.lowers.iter().map(|path| open_path(path)).collect()
    }

    /// With shifted owners, if the pod has a user namespace.
    fn copy_lowers(&self) -> io::Result<Vec<OwnedFd>> {
        let userns = self.userns.as_deref().map(AsFd::as_fd);
        let copy = |path: &PathBuf| detached::copy(path, userns);
        self.lowers.iter().map(copy).collect()
    }

    fn detached(&self, lowers: &[OwnedFd], upper: Option<&Upper>) -> Result<OwnedFd, Error> {
        let fs = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
            .map_err(self.failed("open overlayfs"))?;
        let set = |key: &'static str, value: &str| {
            rustix::mount::fsconfig_set_string(fs.as_fd(), key, value)
                .map_err(|e| self.failed(key)(explain(&fs, e)))
        };
        set("source", "cairn")?;
        for (fd, path) in lowers.iter().zip(&self.lowers) {
            // A shifted layer is not what lies at its path.
            let path = Some(&**path).filter(|_| self.userns.is_none());
            set("lowerdir+", &name(path, fd))?;
        }
        for (key, (path, fd)) in ["upperdir", "workdir"]
            .into_iter()
            .zip(upper.into_iter().flatten())
        {
            set(key, &name(path.as_deref(), fd))?;
        }
        set("index", "off")?;
        if let Some(label) = self.label {
            set("context", label)?;
        }
        if self.upper.is_some() {
            // Without it every unmount flushes the whole file system below (tens of milliseconds and
            // more), for a tree that is thrown away.
            rustix::mount::fsconfig_set_flag(fs.as_fd(), "volatile")
                .map_err(|e| self.failed("volatile")(explain(&fs, e)))?;
        }
        rustix::mount::fsconfig_create(fs.as_fd())
            .map_err(|e| self.failed("create")(explain(&fs, e)))?;
        let attributes = match self.upper {
            Some(_) => MountAttrFlags::empty(),
            None => MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV,
        };
        rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .map_err(self.failed("mount"))
    }

    fn failed<E: Into<io::Error>>(&self, step: &'static str) -> impl FnOnce(E) -> Error {
        move |cause| Error::Mount {
            what: self.target.display().to_string(),
            step,
            cause: cause.into().to_string(),
        }
    }
}

/// Upper and work directory; their paths where these lead to them.
type Upper = [(Option<PathBuf>, OwnedFd); 2];

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Changes the thread's working directory.
fn mount_with_options(
    lowers: &[OwnedFd],
    upper: Option<&Upper>,
    label: Option<&str>,
    target: &Path,
) -> io::Result<()> {
    rustix::process::chdir(DESCRIPTORS)?;
    let names: Vec<_> = lowers.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let mut options = format!("index=off,lowerdir={}", names.join(":"));
    if let Some([(_, upper), (_, work)]) = upper {
        let (upper, work) = (upper.as_raw_fd(), work.as_raw_fd());
        options += &format!(",upperdir={upper},workdir={work},volatile");
    }
    if let Some(label) = label {
        // In quotes: a level has commas.
        options += &format!(",context=\"{label}\"");
    }
    if options.len() >= OPTIONS_MAX {
        return Err(io::Error::other("too many layers for this kernel"));
    }
    let flags = match upper {
        Some(_) => MountFlags::empty(),
        None => MountFlags::RDONLY | MountFlags::NODEV,
    };
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    rustix::mount::mount("cairn", target, "overlay", flags, options.as_c_str()).map_err(|e| {
        let cause = io::Error::from(e);
        io::Error::new(
            cause.kind(),
            format!("{cause} (dmesg has the kernel's words)"),
        )
    })
}

/// Asked once. Overlayfs of Linux 6.5 and 6.6 has no `lowerdir+`; before, a file system context
/// takes any key and fails only when all is put together.
fn supported() -> Api {
    static SUPPORTED: OnceLock<Api> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let api = match rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC) {
            Err(_) => Api::Options,
            Ok(fs) if rustix::mount::fsconfig_set_flag(fs.as_fd(), "no-such-option").is_ok() => {
                Api::Options
            }
            Ok(fs) => match rustix::mount::fsconfig_set_string(fs.as_fd(), "lowerdir+", "/") {
                Ok(()) => Api::LowerdirPlus,
                Err(_) => Api::Options,
            },
        };
        tracing::debug!(?api, "overlayfs");
        api
    })
}

/// A layer's path, for people who read the mount table; its descriptor, where the path is too long
/// or has what overlayfs takes for an escape.
fn name(path: Option<&Path>, fd: &OwnedFd) -> String {
    match path.and_then(Path::to_str) {
        Some(path) if path.len() <= FSCONFIG_MAX && !path.contains('\\') => path.to_owned(),
        _ => format!("/proc/self/fd/{}", fd.as_raw_fd()),
    }
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
#[path = "overlay_tests.rs"]
mod tests;
