//! Mounts on a thread of their own, in a mount namespace that is gone with it, or that is kept by a descriptor; and what the
//! daemon makes of detached trees.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use cairn_monitor::mount_tree::{self, Attributes};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;

/// Runs `work` on a thread of its own, in a copy of this mount namespace and with a working
/// directory of its own. What it mounts is seen by nobody else and is gone with the thread; a
/// detached tree that it returns stays.
pub fn in_private_namespace<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let inside = || {
            // SAFETY: the call is unsafe for CLONE_FILES, which would leave this thread with a
            // descriptor table of its own while others use the same numbers; it is not asked for.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS)? };
            let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", slave)?;
            work()
        };
        let thread = std::thread::Builder::new().name("mounts".to_owned());
        let panicked = |_| Err(io::Error::other("the thread for mounts panicked"));
        thread
            .spawn_scoped(scope, inside)?
            .join()
            .unwrap_or_else(panicked)
    })
}

/// What a mount namespace must have so that a container can be built in it, and mount a procfs and a sysfs of its own.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Taken off in it: libcontainer's cgroup code shall find none to move processes through.
const CGROUPS: &str = "/sys/fs/cgroup";

/// A mount namespace that has [`KERNEL`] without cgroup hierarchies, and nothing else of the host. What is copied from it
/// costs the same however many mounts the host has; what the host mounts later does not arrive. `scratch` is any directory.
pub fn bare_namespace(scratch: &Path) -> io::Result<OwnedFd> {
    in_private_namespace(|| {
        rustix::mount::mount_change(
            "/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        )?;
        let trees: Vec<_> = KERNEL
            .iter()
            .map(|path| Ok((path, mount_tree::copy(Path::new(path), true)?)))
            .collect::<io::Result<_>>()?;
        rustix::mount::mount(
            "cairn",
            scratch,
            "tmpfs",
            MountFlags::empty(),
            c"mode=755,size=64k",
        )?;
        for (path, tree) in &trees {
            let at = scratch.join(&path[1..]);
            std::fs::create_dir(&at)?;
            mount_tree::attach(tree, &at)?;
        }
        rustix::process::chdir(scratch)?;
        // The old root comes to lie upon the new one, and is taken off there.
        rustix::process::pivot_root(".", ".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")?;
        loop {
            match rustix::mount::unmount(CGROUPS, UnmountFlags::DETACH) {
                // Nothing is mounted there any more.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => break,
                other => other?,
            }
        }
        let itself = std::fs::File::open("/proc/thread-self/ns/mnt")?;
        Ok(itself.into())
    })
}

/// A detached copy of a tree with its owners shifted as in the user namespace `userns`.
pub fn shifted(path: &Path, userns: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let tree = mount_tree::copy(path, false)?;
    let attributes = Attributes {
        set: libc::MOUNT_ATTR_IDMAP,
        userns: Some(userns),
        ..Attributes::default()
    };
    mount_tree::set_attributes(&tree, &attributes)?;
    Ok(tree)
}

/// Whether this kernel changes attributes of whole trees, without which no container can be made:
/// Linux 5.12 and later do.
pub fn probe() -> io::Result<()> {
    let attributes = Attributes {
        set: libc::MOUNT_ATTR_RDONLY,
        recursive: true,
        ..Attributes::default()
    };
    mount_tree::set_attributes(&mount_tree::copy(Path::new("/"), false)?, &attributes)
}
