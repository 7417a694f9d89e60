//! Mounts on a thread of their own, in a mount namespace that is gone with it, and what the daemon makes of detached
//! trees.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use cairn_monitor::mount_tree::{self, Attributes};
use rustix::mount::MountPropagationFlags;
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
