//! Mount trees with shifted owners.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cairn_monitor::mount_tree::{self, Attributes};
use cairn_monitor::sys::{self, Fork};
use oci_spec::runtime::LinuxIdMapping;
use rustix::thread::UnshareFlags;

use crate::adjust::Owners;

/// A detached copy of a mount tree with shifted owners (CRI-225).
pub(crate) fn copy(source: &Path, recursive: bool, owners: &Owners) -> Result<OwnedFd, String> {
    let at = |step: &'static str| {
        move |e: io::Error| format!("idmapped mount of {}: {step}: {e}", source.display())
    };
    let tree = mount_tree::copy(source, recursive).map_err(at("open"))?;
    let namespace =
        user_namespace(&owners.uids, &owners.gids).map_err(at("make a user namespace"))?;
    let attributes = Attributes {
        set: libc::MOUNT_ATTR_IDMAP,
        userns: Some(namespace.as_fd()),
        recursive,
        ..Attributes::default()
    };
    mount_tree::set_attributes(&tree, &attributes).map_err(|e| {
        let kind = filesystem(&tree);
        format!(
            "idmapped mount of {}: not supported by its filesystem ({kind}): {e}",
            source.display()
        )
    })?;
    Ok(tree)
}

/// A user namespace with these mappings; nobody lives in it.
fn user_namespace(uids: &[LinuxIdMapping], gids: &[LinuxIdMapping]) -> io::Result<File> {
    let (ready_read, ready_write) = sys::pipe()?;
    let (stay_read, stay_write) = sys::pipe()?;
    let pid = match sys::fork_into(None)? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            drop(stay_write);
            // In its new user namespace a container that is the host's user 0, and sees this process, has every capability
            // over it; its root is the host's.
            let hidden = sys::forbid_dumps();
            if hidden.is_ok() && sys::unshare_namespaces(UnshareFlags::NEWUSER).is_ok() {
                // The parent may have ended.
                let _ = sys::write(ready_write.as_fd(), b"1");
                // Returns when the parent closes its end.
                let _ = sys::read(stay_read.as_fd(), &mut [0]);
            }
            sys::exit_now(0)
        }
    };
    drop(ready_write);
    let result = match sys::read(ready_read.as_fd(), &mut [0]) {
        Ok(1) => map(pid, uids, gids),
        Ok(_) => Err(io::Error::other("unshare failed")),
        Err(e) => Err(e),
    };
    drop(stay_write);
    // The child may have been reaped already.
    let _ = sys::reap_child(pid);
    result
}

fn map(pid: i32, uids: &[LinuxIdMapping], gids: &[LinuxIdMapping]) -> io::Result<File> {
    let text = |maps: &[LinuxIdMapping]| -> String {
        maps.iter()
            .map(|m| format!("{} {} {}\n", m.container_id(), m.host_id(), m.size()))
            .collect()
    };
    fs::write(format!("/proc/{pid}/uid_map"), text(uids))?;
    fs::write(format!("/proc/{pid}/gid_map"), text(gids))?;
    File::open(format!("/proc/{pid}/ns/user"))
}

fn filesystem(fd: &OwnedFd) -> String {
    match rustix::fs::fstatfs(fd) {
        Ok(stat) => format!("type {:#x}", stat.f_type),
        Err(_) => "unknown".to_owned(),
    }
}
