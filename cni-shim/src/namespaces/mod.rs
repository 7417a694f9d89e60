//! The namespaces of a sandbox, pinned by bind mounts, so that they live without a process.
//!
//! ```text
//! <dir>          bind mount of itself, private: one unmount of it removes all below at once
//! ├── net        bind mount of /proc/thread-self/ns/net
//! ├── ipc        … ipc
//! ├── uts        … uts
//! └── user       … user (only for a pod with a user namespace)
//! ```
//! Without a user namespace a short-lived **thread** unshares, prepares and pins. Namespaces owned
//! by a user namespace must be unshared with it, which the kernel allows in a single-threaded
//! process only: see [`helper_main`].
//!
//! `make` has the only `unsafe` of the crate.

mod enter;
mod error;
mod helper;
mod make;
mod spec;
mod sysctl;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};

use crate::file::ignore_missing;
pub use enter::{in_netns, interfaces, set_interface_sysctls};
pub use error::NamespaceError;
pub use helper::{HelperCommand, helper_main, user_namespace};
pub use spec::{IdMap, Mappings, PinSpec, Pinned};

pub(crate) use enter::is_namespace;
use enter::on_thread;
use spec::NAMES;

/// Makes the namespaces and pins them under `dir`, which is made; a non-empty one is rejected
/// ([`unpin`] it first). Blocks for about a millisecond, or for the start of `helper` with a user
/// namespace. A failure leaves nothing.
pub fn pin(spec: &PinSpec, dir: &Path, helper: &HelperCommand) -> Result<Pinned, NamespaceError> {
    spec.validate()?;
    make_empty(dir).map_err(NamespaceError::io(format!("create {}", dir.display())))?;
    let made = prepare_dir(dir, spec).and_then(|()| match &spec.userns {
        None => pin_by_thread(spec, dir),
        Some(mappings) => helper::pin_by_process(spec, mappings, dir, helper),
    });
    if let Err(error) = made {
        if let Err(undo) = unpin(dir) {
            tracing::warn!(dir = %dir.display(), error = %undo, "cannot remove partially created namespaces");
        }
        return Err(error);
    }
    let path = |asked: bool, name| asked.then(|| dir.join(name));
    Ok(Pinned {
        net: path(spec.net, "net"),
        ipc: path(spec.ipc, "ipc"),
        uts: path(spec.uts, "uts"),
        user: path(spec.userns.is_some(), "user"),
    })
}

/// Removes the pins of [`pin`]. The namespaces end with their last process. Idempotent.
pub fn unpin(dir: &Path) -> Result<(), NamespaceError> {
    // The subtree goes with the directory's mount.
    unmount_all(dir)?;
    // By name, so that a wrong path can remove no other files.
    for file in NAMES.map(|name| dir.join(name)) {
        remove_file(&file)?;
    }
    ignore_missing(fs::remove_dir(dir))
        .map_err(NamespaceError::io(format!("remove {}", dir.display())))
}

/// Binds a pinned namespace to `at` too, whose directory is made. Unlike the pin, this mount
/// propagates: a container that mounts the directory sees it. A failure leaves nothing.
pub fn show(pin: &Path, at: &Path) -> Result<(), NamespaceError> {
    let named = |step: &str| format!("{step} {}", at.display());
    let mut dirs = fs::DirBuilder::new();
    dirs.recursive(true).mode(0o755);
    let dir = at.parent().map_or(Ok(()), |dir| dirs.create(dir));
    let file = dir.and_then(|()| File::create_new(at));
    file.map_err(NamespaceError::io(named("create")))?;
    let shown = rustix::mount::mount_bind(pin, at).map_err(NamespaceError::io(named("bind-mount")));
    if shown.is_err()
        && let Err(undo) = hide(at)
    {
        tracing::warn!(at = %at.display(), error = %undo, "cannot remove a partially shown namespace");
    }
    shown
}

/// Undoes [`show`]. Idempotent.
pub fn hide(at: &Path) -> Result<(), NamespaceError> {
    unmount_all(at)?;
    remove_file(at)
}

/// Unmounts `at`; an interrupted call may have stacked mounts.
fn unmount_all(at: &Path) -> Result<(), NamespaceError> {
    loop {
        match rustix::mount::unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(e) => return Err(NamespaceError::io(format!("unmount {}", at.display()))(e)),
        }
    }
}

fn remove_file(file: &Path) -> Result<(), NamespaceError> {
    ignore_missing(fs::remove_file(file))
        .map_err(NamespaceError::io(format!("remove {}", file.display())))
}

fn pin_by_thread(spec: &PinSpec, dir: &Path) -> Result<(), NamespaceError> {
    on_thread("pin", || {
        make::unshare(spec.flags()).map_err(NamespaceError::io("unshare"))?;
        make::prepare(spec)?;
        make::bind_all(spec, Path::new("/proc/thread-self/ns"), dir)
    })?
}

fn make_empty(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    match fs::read_dir(dir)?.next() {
        None => Ok(()),
        Some(_) => Err(io::ErrorKind::DirectoryNotEmpty.into()),
    }
}

/// Makes `dir` a private mount, with an empty file per namespace as mount point.
fn prepare_dir(dir: &Path, spec: &PinSpec) -> Result<(), NamespaceError> {
    let named = |step: &str| format!("{step} {}", dir.display());
    rustix::mount::mount_bind(dir, dir).map_err(NamespaceError::io(named("bind-mount")))?;
    rustix::mount::mount_change(dir, MountPropagationFlags::PRIVATE)
        .map_err(NamespaceError::io(named("make private")))?;
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
