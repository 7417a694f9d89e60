//! Kernel resources of sandboxes and roots beside processes and cgroups: namespaces, mounts,
//! networks. This module knows paths and ids, no pods. Tests replace the machine by one in memory.

use std::{
    collections::HashSet,
    ffi::CStr,
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use cairn_monitor::{mount_tree, stat};
use cni_shim::{
    Attach, Attachment, Network, NetworkError,
    namespaces::{self, HelperCommand, NamespaceError, PinSpec, Pinned},
};
use futures_util::future::BoxFuture;
use rustix::{
    io::Errno,
    mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount},
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::{
    detached,
    image::{self, Rootfs, Userns},
};

/// Methods for mounts and namespaces block: call them through `blocking()`.
pub trait Machine: Send + Sync {
    /// # Errors
    /// The resource that could not be made; nothing is left then.
    fn pin(&self, spec: &PinSpec, dir: &Path) -> Result<Pinned, NamespaceError>;
    /// Idempotent.
    ///
    /// # Errors
    /// The first resource that could not be removed.
    fn unpin(&self, dir: &Path) -> Result<(), NamespaceError>;
    fn is_pinned(&self, path: &Path) -> bool;
    /// # Errors
    /// The kernel's.
    fn mount_tmpfs(&self, name: &str, at: &Path, options: &CStr) -> io::Result<()>;
    /// # Errors
    /// The step that failed.
    fn mount_root(
        &self,
        root: &Rootfs,
        at: &Path,
        userns: Option<Userns>,
        label: Option<&str>,
    ) -> Result<(), image::Error>;
    /// Unmounts everything in the mount namespace of a process, by pid and start time, but first
    /// mounts its procfs at `at`, below the mount point `dir`.
    ///
    /// # Errors
    /// The process has ended, or the kernel's error.
    fn pin_procfs(&self, pid: i32, start_time: u64, dir: &Path, at: &Path) -> io::Result<()>;
    /// With all that is mounted below.
    ///
    /// # Errors
    /// No mount at this path.
    fn unmount(&self, at: &Path) -> io::Result<()>;
    fn attach(&self, attach: Attach) -> BoxFuture<'_, Result<Attachment, NetworkError>>;
    fn detach<'a>(&'a self, sandbox: &'a str) -> BoxFuture<'a, Result<(), NetworkError>>;
    fn abandon<'a>(&'a self, sandbox: &'a str) -> BoxFuture<'a, Result<(), NetworkError>>;
    /// `valid` is called after the networks were listed.
    fn gc<'a>(
        &'a self,
        valid: &'a (dyn Fn() -> HashSet<String> + Sync),
    ) -> BoxFuture<'a, Result<(), NetworkError>>;
}

/// This machine.
pub struct Linux {
    pub network: Arc<Network>,
    /// Makes the namespaces of pods that have a user namespace.
    pub helper: HelperCommand,
    /// Where pods' network namespaces are shown, under the names of their pins' directories.
    pub netns: PathBuf,
}

impl Linux {
    fn shown(&self, pins: &Path) -> Result<PathBuf, NamespaceError> {
        let pod = pins.file_name();
        let pod =
            pod.ok_or_else(|| NamespaceError::Invalid("a directory without a name".into()))?;
        Ok(self.netns.join(pod))
    }
}

impl Machine for Linux {
    fn pin(&self, spec: &PinSpec, dir: &Path) -> Result<Pinned, NamespaceError> {
        let shown = self.shown(dir)?;
        let mut pinned = namespaces::pin(spec, dir, &self.helper)?;
        if let Some(net) = &mut pinned.net {
            if let Err(error) = namespaces::show(net, &shown) {
                if let Err(undo) = namespaces::unpin(dir) {
                    tracing::warn!(dir = %dir.display(), error = %undo, "cannot remove namespaces");
                }
                return Err(error);
            }
            *net = shown;
        }
        Ok(pinned)
    }

    fn unpin(&self, dir: &Path) -> Result<(), NamespaceError> {
        // First, since a sweep finds leftovers by the directory.
        namespaces::hide(&self.shown(dir)?)?;
        namespaces::unpin(dir)
    }

    /// A pin without its mount is an empty file on the file system of the state directory.
    fn is_pinned(&self, path: &Path) -> bool {
        const NSFS_MAGIC: i64 = 0x6e73_6673;
        rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == NSFS_MAGIC)
    }

    fn mount_tmpfs(&self, name: &str, at: &Path, options: &CStr) -> io::Result<()> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        Ok(mount(name, at, "tmpfs", flags, Some(options))?)
    }

    fn mount_root(
        &self,
        root: &Rootfs,
        at: &Path,
        userns: Option<Userns>,
        label: Option<&str>,
    ) -> Result<(), image::Error> {
        root.mount_at(at, userns, label)
    }

    #[expect(clippy::disallowed_methods, reason = "called by blocking()")]
    fn pin_procfs(&self, pid: i32, start_time: u64, dir: &Path, at: &Path) -> io::Result<()> {
        let process = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(process, PidfdFlags::empty())?;
        if stat::start_time(pid)? != start_time {
            return Err(io::Error::other("the process has ended"));
        }
        let procfs = detached::take_procfs(pidfd.as_fd())?;
        // No other mount namespace receives this mount.
        mount_change(dir, MountPropagationFlags::PRIVATE)?;
        std::fs::create_dir(at)?;
        mount_tree::attach(&procfs, at)
    }

    fn unmount(&self, at: &Path) -> io::Result<()> {
        Ok(unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
    }

    fn attach(&self, attach: Attach) -> BoxFuture<'_, Result<Attachment, NetworkError>> {
        Box::pin(self.network.attach(attach))
    }

    fn detach<'a>(&'a self, sandbox: &'a str) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(self.network.detach(sandbox))
    }

    fn abandon<'a>(&'a self, sandbox: &'a str) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(self.network.abandon(sandbox))
    }

    fn gc<'a>(
        &'a self,
        valid: &'a (dyn Fn() -> HashSet<String> + Sync),
    ) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(self.network.gc(valid))
    }
}
