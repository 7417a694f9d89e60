//! Mount options as kernel flags.

use oci_spec::runtime::Mount;

/// The MOUNT_ATTR_* bit of a mount option. Access times have no effect in cgroup file systems and
/// procfs; `bind` is not an attribute.
pub(crate) fn attribute(option: &str) -> Option<u64> {
    Some(match option {
        "ro" => libc::MOUNT_ATTR_RDONLY,
        "nosuid" => libc::MOUNT_ATTR_NOSUID,
        "nodev" => libc::MOUNT_ATTR_NODEV,
        "noexec" => libc::MOUNT_ATTR_NOEXEC,
        "rw" | "suid" | "dev" | "exec" | "defaults" | "bind" | "rbind" => 0,
        "atime" | "noatime" | "diratime" | "nodiratime" | "relatime" | "strictatime" => 0,
        _ => return None,
    })
}

/// The MOUNT_ATTR_* bit of an option for access times, for a new mount.
pub(crate) fn access_time(option: &str) -> u64 {
    match option {
        "noatime" => libc::MOUNT_ATTR_NOATIME,
        "strictatime" => libc::MOUNT_ATTR_STRICTATIME,
        "nodiratime" => libc::MOUNT_ATTR_NODIRATIME,
        _ => 0,
    }
}

pub(crate) fn attributes(options: &[String]) -> u64 {
    let bits = options.iter().filter_map(|o| attribute(o));
    bits.fold(0, |all, bit| all | bit)
}

pub(crate) fn propagation(option: &str) -> Option<u64> {
    let (kind, recursive) = match option.strip_prefix('r') {
        Some(rest @ ("private" | "shared" | "slave" | "unbindable")) => (rest, libc::MS_REC),
        _ => (option, 0),
    };
    let flag = match kind {
        "private" => libc::MS_PRIVATE,
        "shared" => libc::MS_SHARED,
        "slave" => libc::MS_SLAVE,
        "unbindable" => libc::MS_UNBINDABLE,
        _ => return None,
    };
    Some(flag | recursive)
}

pub(crate) fn options(mount: &Mount) -> &[String] {
    mount.options().as_deref().unwrap_or_default()
}

pub(crate) fn is_bind(mount: &Mount) -> bool {
    let words = options(mount);
    mount.typ().as_deref() == Some("bind") || words.iter().any(|o| o == "bind" || o == "rbind")
}
