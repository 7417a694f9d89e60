//! Builds mount trees in a private mount namespace, and detaches them.
//!
//! Its namespace is a copy of the *bare* one, which has only `/proc`, `/sys` without the mounts
//! below, and `/dev` of the host: a copy costs the same regardless of the host's mounts, and later
//! mounts of the host do not appear. Containers are built in copies of it too (`cairn-create`).

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

/// Mounts needed for building a container, and whether with those below. A user namespace can mount
/// procfs and sysfs only if one is visible without mounts on it; and libcontainer's cgroup code
/// must not find hierarchies to move processes through.
const KERNEL: [(&str, bool); 3] = [("/proc", false), ("/sys", false), ("/dev", true)];
/// An empty directory in the bare namespace.
pub(crate) const FREE: &str = "/mnt";

/// The bare namespace, made at first use; only its descriptor keeps it.
pub(crate) fn bare() -> io::Result<BorrowedFd<'static>> {
    static BARE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(made) = BARE.get() {
        return Ok(made.as_fd());
    }
    let made = on_a_thread(make_bare)?;
    Ok(BARE.get_or_init(|| made).as_fd())
}

/// Runs `work` on its own thread, in a copy of the bare namespace and with its own working
/// directory. Its mounts are invisible to others and end with the thread; a returned detached tree
/// stays. Sources on the host's file systems must be opened before.
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
    // SAFETY: the call is unsafe for CLONE_FILES, which would separate this thread's descriptor
    // table from the others'; no caller passes it.
    unsafe { rustix::thread::unshare_unsafe(what)? };
    Ok(())
}

fn make_bare() -> io::Result<OwnedFd> {
    unshare(UnshareFlags::NEWNS | UnshareFlags::FS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let trees = KERNEL.map(|(path, recursive)| mount_tree::copy(Path::new(path), recursive));
    // Any directory would do: the tmpfs hides it for a moment only.
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

/// Takes the procfs at `/proc` out of a process's mount namespace. The namespace, and its
/// processes, keep only an empty, read-only root. Returns the procfs detached and read-only.
pub(crate) fn take_procfs(process: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    on_a_thread(|| {
        unshare(UnshareFlags::FS)?;
        move_into_thread_name_spaces(process, ThreadNameSpaceType::MOUNT)?;
        let at = Path::new("/proc");
        let procfs = mount_tree::copy(at, false)?;
        let sealed = Attributes {
            set: SEALED,
            propagation: libc::MS_PRIVATE,
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

/// Makes a mount the root of the mount namespace and of its processes; detaches the old root.
fn make_root(at: &Path) -> io::Result<()> {
    rustix::process::chdir(at)?;
    // pivot_root puts the old root on the new one, where it is unmounted.
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// A detached copy of the mount at `path`; with `userns` its owners are shifted.
pub(crate) fn copy(path: &Path, userns: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let tree = mount_tree::copy(path, false)?;
    let attributes = Attributes {
        set: userns.map_or(0, |_| libc::MOUNT_ATTR_IDMAP),
        userns,
        // The host's mount is usually shared: a mount on the copy would appear on the host too.
        propagation: libc::MS_PRIVATE,
        ..Attributes::default()
    };
    mount_tree::set_attributes(&tree, &attributes)?;
    Ok(tree)
}

/// Checks that the kernel changes attributes of whole trees, which containers need: Linux 5.12.
pub(crate) fn probe() -> io::Result<()> {
    let attributes = Attributes {
        set: libc::MOUNT_ATTR_RDONLY,
        recursive: true,
        ..Attributes::default()
    };
    mount_tree::set_attributes(&mount_tree::copy(Path::new("/"), false)?, &attributes)
}
