//! Mount trees with shifted owners.

#![expect(
    clippy::disallowed_methods,
    reason = "the host's procfs, and paths of the host"
)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cairn_monitor::mount_tree::{self, Attributes};
use cairn_monitor::sys::{self, Fork};
use oci_spec::runtime::LinuxIdMapping;
use rustix::thread::UnshareFlags;

use crate::adjust::Owners;

/// A detached copy with shifted owners (CRI-225).
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

/// Makes a user namespace with these mappings and without processes.
fn user_namespace(uids: &[LinuxIdMapping], gids: &[LinuxIdMapping]) -> io::Result<File> {
    let (ready_read, ready_write) = sys::pipe()?;
    let (stay_read, stay_write) = sys::pipe()?;
    let pid = match sys::fork_into(None)? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            drop(stay_write);
            // A container with the host's user 0 that sees this process would have every capability
            // over it in the new user namespace; its root is the host's.
            let hidden = sys::forbid_dumps();
            if hidden.is_ok() && sys::unshare_namespaces(UnshareFlags::NEWUSER).is_ok() {
                let _ = sys::write(ready_write.as_fd(), b"1"); // the parent may be dead
                let _ = sys::read(stay_read.as_fd(), &mut [0]); // returns when the parent closes it
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
    let _ = sys::reap_child(pid); // a failure leaves nothing to do
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
