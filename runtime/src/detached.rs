//! Mount trees that are put together where nobody sees it, and what the daemon makes of detached ones.
//!
//! That is a copy of the *bare* mount namespace, which has `/proc`, `/sys` without what is mounted below, `/dev` and nothing else of
//! the host: to copy it costs the same however many mounts the host has, and what the host mounts later does not arrive.
//! Containers are built in copies of it too (`cairn-create`).

#![expect(clippy::disallowed_methods, reason = "procfs, and mounts of our own")]
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use cairn_monitor::mount_tree::{self, Attributes, SEALED};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, move_into_link_name_space,
    move_into_thread_name_spaces,
};

/// What a mount namespace must have so that a container can be built in it, and whether with the mounts below. In a user
/// namespace a procfs and a sysfs can be mounted only where one is in sight with nothing mounted upon it; and libcontainer's
/// cgroup code shall find no hierarchies to move processes through.
const KERNEL: [(&str, bool); 3] = [("/proc", false), ("/sys", false), ("/dev", true)];
/// An empty directory in it.
pub(crate) const FREE: &str = "/mnt";

/// The bare namespace: made when it is first asked for, held by its descriptor alone.
pub(crate) fn bare() -> io::Result<BorrowedFd<'static>> {
    static BARE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(made) = BARE.get() {
        return Ok(made.as_fd());
    }
    let made = on_a_thread(make_bare)?;
    Ok(BARE.get_or_init(|| made).as_fd())
}

/// Runs `work` on a thread of its own, in a copy of the bare namespace and with a working directory of its own. What it
/// mounts is seen by nobody else and is gone with the thread; a detached tree that it returns stays. What it needs of the
/// host's file systems it must have taken hold of before.
pub(crate) fn in_bare_namespace<T: Send>(
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let bare = bare()?;
    on_a_thread(|| {
        unshare(UnshareFlags::FS)?;
        move_into_link_name_space(bare, Some(LinkNameSpaceType::Mount))?;
        unshare(UnshareFlags::NEWNS)?;
        work()
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("mounts".to_owned());
        let panicked = |_| Err(io::Error::other("the thread for mounts panicked"));
        let running = thread.spawn_scoped(scope, work)?;
        running.join().unwrap_or_else(panicked)
    })
}

fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: the call is unsafe for CLONE_FILES, which would leave this thread with a descriptor table of its own while
    // others use the same numbers; it is not asked for.
    unsafe { rustix::thread::unshare_unsafe(what)? };
    Ok(())
}

fn make_bare() -> io::Result<OwnedFd> {
    unshare(UnshareFlags::NEWNS | UnshareFlags::FS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let trees = KERNEL.map(|(path, recursive)| mount_tree::copy(Path::new(path), recursive));
    // Anywhere: what it hides here is gone in a moment.
    let root = Path::new("/proc");
    let options = Some(c"mode=755,size=64k");
    rustix::mount::mount("cairn", root, "tmpfs", MountFlags::empty(), options)?;
    std::fs::create_dir(root.join(&FREE[1..]))?;
    for ((path, _), tree) in KERNEL.iter().zip(trees) {
        let at = root.join(&path[1..]);
        std::fs::create_dir(&at)?;
        mount_tree::attach(&tree?, &at)?;
    }
    make_root(root)?;
    Ok(File::open("/proc/thread-self/ns/mnt")?.into())
}

/// Takes the procfs at `/proc` out of the mount namespace of a process, and leaves that namespace nothing but an empty,
/// read-only root, which becomes that of its processes too. The procfs comes back detached and read-only.
pub(crate) fn take_procfs(process: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    on_a_thread(|| {
        unshare(UnshareFlags::FS)?;
        move_into_thread_name_spaces(process, ThreadNameSpaceType::MOUNT)?;
        let at = Path::new("/proc");
        let procfs = mount_tree::copy(at, false)?;
        let sealed = Attributes {
            set: SEALED,
            private: true,
            ..Attributes::default()
        };
        mount_tree::set_attributes(&procfs, &sealed)?;
        let flags =
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("cairn", at, "tmpfs", flags, c"mode=555,nr_inodes=1")?;
        make_root(at)?;
        Ok(procfs)
    })
}

/// Makes a mount the root of the mount namespace, and of each process that has the old one; nothing else is left of it.
fn make_root(at: &Path) -> io::Result<()> {
    rustix::process::chdir(at)?;
    // The old root comes to lie upon the new one, and is taken off there.
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// A detached copy of the mount at `path`, to be attached upon others; with its owners shifted as in the user namespace
/// `userns`, if one is given.
pub(crate) fn copy(path: &Path, userns: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let tree = mount_tree::copy(path, false)?;
    let attributes = Attributes {
        set: userns.map_or(0, |_| libc::MOUNT_ATTR_IDMAP),
        userns,
        // The host's is shared, as a rule: what comes to lie upon the copy would be mounted on the host too.
        private: true,
        ..Attributes::default()
    };
    mount_tree::set_attributes(&tree, &attributes)?;
    Ok(tree)
}

/// Whether this kernel changes attributes of whole trees, without which no container can be made:
/// Linux 5.12 and later do.
pub(crate) fn probe() -> io::Result<()> {
    let attributes = Attributes {
        set: libc::MOUNT_ATTR_RDONLY,
        recursive: true,
        ..Attributes::default()
    };
    mount_tree::set_attributes(&mount_tree::copy(Path::new("/"), false)?, &attributes)
}
