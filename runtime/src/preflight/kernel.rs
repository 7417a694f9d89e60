//! Checks of the kernel: mounts, cgroups, namespaces, security modules.

use std::{fs, path::Path};

use super::finding::Finding;
use crate::{
    cgroup::{Host, Mode},
    detached, host,
};

/// Controllers, and the features lost without them.
const CONTROLLERS: [(&str, &str); 6] = [
    ("memory", "memory limits"),
    ("cpu", "cpu shares and quotas"),
    ("pids", "pids limits"),
    ("cpuset", "cpuset_cpus and cpuset_mems"),
    ("io", "statistics and limits of disks"),
    ("hugetlb", "limits of huge pages"),
];
const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

pub(super) fn release() -> String {
    let name = rustix::system::uname();
    name.release().to_string_lossy().into_owned()
}

pub(super) fn mounts() -> Finding {
    let release = release();
    match detached::probe() {
        Ok(()) => Finding::ok("kernel", format!("Linux {release}")),
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => Finding::fails(
            "kernel",
            format!("Linux {release} has no mount_setattr"),
            "cairn needs Linux 5.14 or later",
        ),
        Err(e) => Finding::fails(
            "kernel",
            format!("Linux {release}: no attributes of a mount can be changed ({e})"),
            "cairn needs root with CAP_SYS_ADMIN",
        ),
    }
}

pub(super) fn cgroups() -> Finding {
    const WHAT: &str = "cgroups";
    let host = match Host::detect() {
        Ok(host) => host,
        Err(e) => return Finding::fails(WHAT, e.to_string(), "mount cgroup2 at /sys/fs/cgroup"),
    };
    // v2's io controller is named blkio in v1.
    let has = |name: &str| host.has(name) || name == "io" && host.has("blkio");
    let (there, missing): (Vec<_>, Vec<_>) =
        CONTROLLERS.into_iter().partition(|(name, _)| has(name));
    let mode = match host.mode() {
        Mode::V1 => "v1",
        Mode::Hybrid => "v1 and v2 (hybrid)",
        Mode::V2 => "v2",
    };
    let names: Vec<_> = there.iter().map(|(name, _)| *name).collect();
    let found = format!("{mode}; {}", names.join(" "));
    let mut costs: Vec<_> = missing
        .iter()
        .map(|(name, lost)| format!("without {name} there are no {lost}"))
        .collect();
    if host.mode() != Mode::V2 {
        costs
            .push("kubelets from 1.35 on refuse cgroup v1 unless failCgroupV1 is false".to_owned());
    }
    if costs.is_empty() {
        return Finding::ok(WHAT, found);
    }
    Finding::limited(WHAT, found, costs.join("; "))
}

pub(super) fn namespaces() -> Finding {
    const WHAT: &str = "namespaces";
    let missing: Vec<_> = NAMESPACES
        .into_iter()
        .filter(|name| !Path::new("/proc/self/ns").join(name).exists())
        .collect();
    match missing[..] {
        [] => Finding::ok(WHAT, NAMESPACES.join(" ")),
        ["user"] => Finding::limited(
            WHAT,
            "all but user",
            "pods with a user namespace are refused",
        ),
        _ => Finding::fails(
            WHAT,
            format!("missing: {}", missing.join(" ")),
            "use a kernel that has them",
        ),
    }
}

pub(super) fn security() -> [Finding; 3] {
    [seccomp(), apparmor(), selinux()]
}

fn seccomp() -> Finding {
    match fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail") {
        Ok(actions) => Finding::ok("seccomp", actions.trim().to_owned()),
        Err(_) => Finding::limited(
            "seccomp",
            "not in this kernel",
            "containers with a seccomp profile, the default among them, and pods that share a PID namespace are refused",
        ),
    }
}

fn apparmor() -> Finding {
    const WHAT: &str = "apparmor";
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    if !enabled.is_ok_and(|text| text.trim() == "Y") {
        return Finding::ok(WHAT, "not enabled on this host");
    }
    let parser = ["/sbin/apparmor_parser", "/usr/sbin/apparmor_parser"];
    if parser.iter().any(|path| Path::new(path).exists()) {
        return Finding::ok(WHAT, "enabled");
    }
    Finding::limited(
        WHAT,
        "enabled, but apparmor_parser is missing",
        "no profile can be loaded: install apparmor",
    )
}

fn selinux() -> Finding {
    const WHAT: &str = "selinux";
    let Some(selinux) = host::selinux::facts() else {
        return Finding::ok(WHAT, "not enabled on this host");
    };
    let mode = if selinux.enforcing {
        "enforcing"
    } else {
        "permissive"
    };
    match selinux.contexts {
        Ok(contexts) => Finding::ok(WHAT, format!("{mode}: containers are {}", contexts.process)),
        Err(why) if selinux.enforcing => Finding::fails(
            WHAT,
            format!("enforcing, but no label can be set: {why}"),
            "pods are refused, not run unconfined",
        ),
        Err(why) => Finding::ok(WHAT, format!("permissive, without labels: {why}")),
    }
}
