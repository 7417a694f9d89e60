//! The overlay mount: many layers, plain or with shifted owners, on any kernel (CRI-450).
//!
//! | layers | kernel | how | where |
//! |---|---|---|---|
//! | as they are | from 6.7 | `fsopen`, a `lowerdir+` for each | nowhere: a detached mount |
//! | as they are | before | `mount`, one options string | a copy of the bare mount namespace |
//! | owners shifted | any | as above | a copy of the bare mount namespace |
//!
//! The options string has one page for all layers. It names them by descriptor, relative to a
//! working directory in /proc: five bytes a layer, and no escapes. Shifted layers must be attached
//! somewhere (before kernel 6.15): in a namespace that ends with its thread they are invisible, and
//! a crash leaves none.

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

/// Longest string of `fsconfig`.
const FSCONFIG_MAX: usize = 255;
/// Longest options string of `mount`, with its NUL.
const OPTIONS_MAX: usize = 4096;
/// The base of names in the options string.
const DESCRIPTORS: &str = "/proc/thread-self/fd";

/// A pod's user namespace, by which lower trees and volumes are shifted (CRI-452).
pub type Userns = Arc<OwnedFd>;

/// Parameters of an overlay mount.
pub(crate) struct Overlay<'a> {
    /// Topmost first.
    pub lowers: Vec<PathBuf>,
    /// Upper and work directory; `None` for a read-only view.
    pub upper: Option<(&'a Path, &'a Path)>,
    pub userns: Option<Userns>,
    /// SELinux label of all its files.
    pub label: Option<&'a str>,
    /// Mount point.
    pub target: &'a Path,
}

/// A detached read-only view of these layers, topmost first, for the daemon alone; it ends with its
/// last descriptor. `what` is for messages. A single layer is its own view: it has no whiteouts.
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

/// The kernel interface for passing layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Api {
    LowerdirPlus,
    Options,
}

impl Overlay<'_> {
    pub(crate) fn mount(&self) -> Result<(), Error> {
        self.mount_by(supported())
    }

    /// Checks whether it can be mounted, without mounting it.
    pub(crate) fn try_out(&self) -> Result<(), Error> {
        self.make(supported()).map(drop)
    }

    fn mount_by(&self, api: Api) -> Result<(), Error> {
        let tree = self.make(api)?;
        mount_tree::attach(&tree, self.target).map_err(self.failed("attach"))
    }

    /// Makes the view, detached.
    fn make(&self, api: Api) -> Result<OwnedFd, Error> {
        if let Some((_, work)) = self.upper {
            // A volatile mount leaves a mark that forbids the next one. Here the next one is a
            // repeated start, of a tree that need not survive a crash.
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

    /// `lowers`: layers, topmost first. `above`: parent of upper and work directory. All detached.
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

    /// Copies the layers, with shifted owners if the pod has a user namespace.
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
            // A shifted layer is not the tree at its path.
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
            // Without it every unmount flushes the file system below (tens of milliseconds and
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

/// Upper and work directory, with their paths if these lead to them.
type Upper = [(Option<PathBuf>, OwnedFd); 2];

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Mounts by an options string. Changes the thread's working directory.
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
        // Quoted: a level contains commas.
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
            format!("{cause} (see dmesg for the kernel's message)"),
        )
    })
}

/// Detected once. Overlayfs of Linux 6.5 and 6.6 has no `lowerdir+`; before, a file system context
/// accepts any key and fails only when it is created.
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
        tracing::debug!(?api, "detected the overlayfs interface");
        api
    })
}

/// A layer's path, for readers of the mount table; its descriptor if the path is too long or has an
/// escape character of overlayfs.
fn name(path: Option<&Path>, fd: &OwnedFd) -> String {
    match path.and_then(Path::to_str) {
        Some(path) if path.len() <= FSCONFIG_MAX && !path.contains('\\') => path.to_owned(),
        _ => format!("/proc/self/fd/{}", fd.as_raw_fd()),
    }
}

/// Adds the kernel's message on a failed step, which it leaves in the descriptor.
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
