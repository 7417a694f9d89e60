//! The namespaces of a sandbox: made, prepared and pinned by a bind mount, so that they live without a process.
//!
//! ```text
//! <dir>          bind mount of itself, private: one unmount of it removes all below at once
//! ├── net        bind mount of /proc/thread-self/ns/net
//! ├── ipc        … ipc
//! ├── uts        … uts
//! └── user       … user (only for a pod with a user namespace)
//! ```
//! Without a user namespace a short-lived **thread** unshares, prepares and pins. Namespaces that a user namespace
//! shall own must be unshared together with it, which the kernel allows a single-threaded process only: see
//! [`helper_main`].
//!
//! This is the only file of the crate with `unsafe`.

mod helper;
mod sysctl;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

pub use helper::{HelperCommand, helper_main};

use crate::link::{self, Link};
use crate::netlink::{Family, NetlinkError, Socket};

/// Files under a pin directory; the links in `/proc/<pid>/ns` have the same names.
const NAMES: [&str; 4] = ["net", "ipc", "uts", "user"];
/// Longest hostname the kernel takes (CRI-205).
const HOSTNAME_MAX: usize = 64;

/// Which namespaces to make, and what to set in them.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PinSpec {
    pub net: bool,
    pub ipc: bool,
    pub uts: bool,
    /// Set in the new UTS namespace; needs `uts` (CRI-205).
    pub hostname: Option<String>,
    /// Names with dots. Only those of a namespace made here are taken (CRI-206). Those of the pod's interface wait
    /// until it exists: see [`set_interface_sysctls`].
    pub sysctls: Vec<(String, String)>,
    /// A user namespace that owns the others.
    pub userns: Option<Mappings>,
}

/// The id mappings of a user namespace. Container id 0 must be mapped on both sides.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mappings {
    pub uids: Vec<IdMap>,
    pub gids: Vec<IdMap>,
}

/// `size` ids from `container` on are the host's from `host` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct IdMap {
    pub container: u32,
    pub host: u32,
    pub size: u32,
}

/// Where the namespaces are pinned; `None` for those not asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pinned {
    pub net: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    pub user: Option<PathBuf>,
}

/// Why namespaces could not be made, entered or removed.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("sysctl {name}: {reason}")]
    Sysctl { name: String, reason: String },
    #[error("invalid request for namespaces: {0}")]
    Invalid(String),
    #[error("{step}: {cause}")]
    Io { step: String, cause: io::Error },
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("sandbox helper: {0}")]
    Helper(String),
}

impl NamespaceError {
    fn io(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |cause| Self::Io { step, cause }
    }
}

impl PinSpec {
    /// Checks what can be known before anything is made.
    pub fn validate(&self) -> Result<(), NamespaceError> {
        if let Some(hostname) = &self.hostname {
            let invalid = |why: &str| {
                Err(NamespaceError::Invalid(format!(
                    "hostname {hostname:?} {why}"
                )))
            };
            match hostname {
                _ if !self.uts => return invalid("without a UTS namespace"),
                name if name.is_empty() => return invalid("is empty"),
                name if name.len() > HOSTNAME_MAX => return invalid("is longer than 64 bytes"),
                name if name.contains(['\0', '/', '\n']) => {
                    return invalid("has a forbidden character");
                }
                _ => {}
            }
        }
        for (name, value) in &self.sysctls {
            sysctl::check(self, name, value)?;
        }
        self.userns.as_ref().map_or(Ok(()), Mappings::validate)
    }

    fn flags(&self) -> UnshareFlags {
        let mut flags = UnshareFlags::empty();
        flags.set(UnshareFlags::NEWNET, self.net);
        flags.set(UnshareFlags::NEWIPC, self.ipc);
        flags.set(UnshareFlags::NEWUTS, self.uts);
        flags.set(UnshareFlags::NEWUSER, self.userns.is_some());
        flags
    }

    /// Those of [`NAMES`] that are asked for.
    fn wanted(&self) -> impl Iterator<Item = &'static str> {
        let asked = [self.net, self.ipc, self.uts, self.userns.is_some()];
        NAMES
            .into_iter()
            .zip(asked)
            .filter_map(|(name, asked)| asked.then_some(name))
    }

    /// The last steps inside the new namespaces, by whoever unshared them.
    fn prepare(&self) -> Result<(), NamespaceError> {
        if let Some(hostname) = &self.hostname {
            rustix::system::sethostname(hostname.as_bytes())
                .map_err(|e| NamespaceError::io(format!("set hostname {hostname}"))(e.into()))?;
        }
        if self.net {
            Socket::open(Family::Route)?.run(&[link::loopback_up()])?;
        }
        let now = self
            .sysctls
            .iter()
            .filter(|(name, _)| !sysctl::is_of_interface(name));
        now.into_iter()
            .try_for_each(|(name, value)| sysctl::write(name, value))
    }
}

/// Makes the namespaces and pins them under `dir`, which is made; one that holds something is refused and left alone
/// ([`unpin`] it first). Blocks for about a millisecond; with a user namespace, as long as `helper` needs to start.
/// What was made is removed on failure.
pub fn pin(spec: &PinSpec, dir: &Path, helper: &HelperCommand) -> Result<Pinned, NamespaceError> {
    spec.validate()?;
    make_empty(dir).map_err(NamespaceError::io(format!("create {}", dir.display())))?;
    let made = prepare_dir(dir, spec).and_then(|()| match &spec.userns {
        None => pin_by_thread(spec, dir),
        Some(mappings) => helper::pin_by_process(spec, mappings, dir, helper),
    });
    if let Err(error) = made {
        if let Err(undo) = unpin(dir) {
            tracing::warn!(dir = %dir.display(), error = %undo, "cannot remove half-made namespaces");
        }
        return Err(error);
    }
    let path = |name: &str| {
        spec.wanted()
            .any(|wanted| wanted == name)
            .then(|| dir.join(name))
    };
    Ok(Pinned {
        net: path("net"),
        ipc: path("ipc"),
        uts: path("uts"),
        user: path("user"),
    })
}

/// Removes what [`pin`] made. The namespaces end with their last process. Idempotent.
pub fn unpin(dir: &Path) -> Result<(), NamespaceError> {
    // The whole subtree goes with the directory's own mount. The loop clears mounts stacked by an interrupted pin.
    loop {
        match rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(e) => {
                return Err(NamespaceError::io(format!("unmount {}", dir.display()))(
                    e.into(),
                ));
            }
        }
    }
    // By name, so that a wrong path cannot cost more than these.
    for file in NAMES.map(|name| dir.join(name)) {
        gone(fs::remove_file(&file))
            .map_err(NamespaceError::io(format!("remove {}", file.display())))?;
    }
    gone(fs::remove_dir(dir)).map_err(NamespaceError::io(format!("remove {}", dir.display())))
}

/// What is not there counts as removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Sets, in an attached pod, those of its parameters that belong to its interface. The names were checked by
/// [`PinSpec::validate`].
pub fn set_interface_sysctls(
    netns: &Path,
    sysctls: &[(String, String)],
) -> Result<(), NamespaceError> {
    let late: Vec<_> = sysctls
        .iter()
        .filter(|(name, _)| sysctl::is_of_interface(name))
        .collect();
    if late.is_empty() {
        return Ok(());
    }
    in_netns(netns, || {
        late.iter()
            .try_for_each(|(name, value)| sysctl::write(name, value))
    })?
}

/// The interfaces in a network namespace with their traffic, loopback included. Blocks for some 0.1 ms.
pub fn interfaces(netns: &Path) -> Result<Vec<Link>, NamespaceError> {
    in_netns(netns, || Ok(link::list(&mut Socket::open(Family::Route)?)?))?
}

/// Runs `work` on a thread of its own that has entered the network namespace pinned at `netns`. Sockets it opens
/// stay there.
pub fn in_netns<T: Send>(
    netns: &Path,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NamespaceError> {
    let file = File::open(netns).map_err(NamespaceError::io(format!(
        "open network namespace {}",
        netns.display()
    )))?;
    let enter = || {
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| {
                NamespaceError::io(format!("enter network namespace {}", netns.display()))(e.into())
            })
            .map(|()| work())
    };
    on_thread("netns", enter)?
}

/// Runs `work` on a thread that ends with it, so that what the thread unshared or entered touches no other.
fn on_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn_scoped(scope, work);
        let thread = thread.map_err(NamespaceError::io("start a thread"))?;
        thread
            .join()
            .map_err(|_| NamespaceError::Invalid("the namespace thread panicked".into()))
    })
}

fn pin_by_thread(spec: &PinSpec, dir: &Path) -> Result<(), NamespaceError> {
    on_thread("pin", || {
        unshare(spec.flags()).map_err(NamespaceError::io("unshare"))?;
        spec.prepare()?;
        bind_all(spec, Path::new("/proc/thread-self/ns"), dir)
    })?
}

/// Leaves the namespaces in `flags` for new ones, for the calling thread only.
#[allow(unsafe_code)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.intersects(UnshareFlags::FILES | UnshareFlags::FS | UnshareFlags::NEWNS));
    // SAFETY: the call is unsafe because of CLONE_FILES, which would leave this thread with a descriptor table of its
    // own while others go on using the numbers. `PinSpec::flags` sets namespace flags only: no table is touched.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

fn make_empty(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    match fs::read_dir(dir)?.next() {
        None => Ok(()),
        Some(_) => Err(io::ErrorKind::DirectoryNotEmpty.into()),
    }
}

/// Makes `dir` a private mount of its own, and in it an empty file per namespace as mount point.
fn prepare_dir(dir: &Path, spec: &PinSpec) -> Result<(), NamespaceError> {
    let named = |step: &str| format!("{step} {}", dir.display());
    rustix::mount::mount_bind(dir, dir)
        .map_err(|e| NamespaceError::io(named("bind-mount"))(e.into()))?;
    rustix::mount::mount_change(dir, MountPropagationFlags::PRIVATE)
        .map_err(|e| NamespaceError::io(named("make private"))(e.into()))?;
    for name in spec.wanted() {
        let file = dir.join(name);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&file)
            .map_err(NamespaceError::io(format!("create {}", file.display())))?;
    }
    Ok(())
}

fn bind_all(spec: &PinSpec, namespaces: &Path, dir: &Path) -> Result<(), NamespaceError> {
    for name in spec.wanted() {
        rustix::mount::mount_bind(namespaces.join(name), dir.join(name)).map_err(|e| {
            NamespaceError::io(format!("pin namespace {}", dir.join(name).display()))(e.into())
        })?;
    }
    Ok(())
}
