//! Kernel parameters of a sandbox's own namespaces (CRI-206): the allowed names, and the write.

use std::fs;
use std::path::PathBuf;

use super::error::NamespaceError;
use crate::types::INTERFACE;

const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 4096;

/// Refuses a parameter that would act on the host: one of a namespace the sandbox does not own, or
/// of none. The flags say whether it has a network and an IPC namespace of its own.
pub(crate) fn check(net: bool, ipc: bool, name: &str, value: &str) -> Result<(), NamespaceError> {
    let refuse = |reason: &str| {
        Err(NamespaceError::Sysctl {
            name: name.into(),
            reason: reason.into(),
        })
    };
    let word = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    if name.len() > NAME_MAX || !name.split('.').all(word) {
        return refuse("invalid name: must be words separated by dots");
    }
    if value.len() > VALUE_MAX || value.contains('\0') {
        return refuse("the value is too long or contains a NUL byte");
    }
    let of_ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || name == "kernel.sem";
    match name {
        _ if of_ipc && !ipc => refuse("not allowed with the host's IPC namespace"),
        _ if of_ipc => Ok(()),
        _ if name.starts_with("net.") && !net => refuse("not allowed with the host's network"),
        _ if name.starts_with("net.") => Ok(()),
        _ => refuse("not namespaced"),
    }
}

/// Whether a parameter belongs to the pod's interface, which exists only after the attach.
pub(crate) fn is_of_interface(name: &str) -> bool {
    let mut words = name.split('.');
    let (net, _family, kind, of) = (words.next(), words.next(), words.next(), words.next());
    net == Some("net") && matches!(kind, Some("conf" | "neigh")) && of == Some(INTERFACE)
}

/// Writes a checked parameter in the calling thread's namespaces.
pub(crate) fn write(name: &str, value: &str) -> Result<(), NamespaceError> {
    let path: PathBuf = ["/proc/sys", &name.replace('.', "/")].iter().collect();
    fs::write(path, value).map_err(|cause| NamespaceError::Sysctl {
        name: name.into(),
        reason: format!("set {value:?}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parameters_of_an_own_namespace_are_taken() {
        for (name, net, ipc, taken) in [
            ("net.ipv4.ip_unprivileged_port_start", true, false, true),
            ("net.ipv4.ip_unprivileged_port_start", false, true, false),
            ("kernel.shm_rmid_forced", false, true, true),
            ("kernel.shm_rmid_forced", true, false, false),
            ("kernel.sem", true, true, true),
            ("kernel.semaphore", true, true, false),
            ("fs.mqueue.msg_max", true, true, true),
            ("vm.overcommit_memory", true, true, false),
            ("kernel.core_pattern", true, true, false),
        ] {
            assert_eq!(check(net, ipc, name, "1").is_ok(), taken, "{name}");
        }
    }

    #[test]
    fn parameters_of_the_pods_interface_are_distinguished() {
        for (name, of_interface) in [
            ("net.ipv4.conf.eth0.rp_filter", true),
            ("net.ipv6.neigh.eth0.base_reachable_time_ms", true),
            ("net.ipv4.conf.all.rp_filter", false),
            ("net.ipv4.ip_forward", false),
            ("kernel.conf.conf.eth0", false),
        ] {
            assert_eq!(is_of_interface(name), of_interface, "{name}");
        }
    }

    #[test]
    fn a_name_cannot_climb_out_of_the_parameter_tree() {
        for name in [
            "net...",
            "net./etc/x",
            "net.ipv4.",
            "",
            "net.a b",
            "net.\u{0}",
        ] {
            assert!(check(true, true, name, "1").is_err(), "{name:?}");
        }
    }
}
