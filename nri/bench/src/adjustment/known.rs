//! The words that runtimes know.

/// Options of mounts, each also as its contrary (`noexec`), and both also for all mounts below (`rexec`, `rnoexec`).
const FLAGS: &[&str] = &[
    "atime",
    "dev",
    "diratime",
    "exec",
    "relatime",
    "strictatime",
    "suid",
    "symfollow",
];
/// Each also as its contrary.
const OF_FILE_SYSTEMS: &[&str] = &["iversion", "lazytime", "mand"];
/// Each also for all mounts below.
const OF_TREES: &[&str] = &[
    "bind",
    "idmap",
    "private",
    "ro",
    "rw",
    "shared",
    "slave",
    "unbindable",
];
const OTHERS: &[&str] = &[
    "async",
    "defaults",
    "dirsync",
    "loud",
    "remount",
    "silent",
    "sync",
    "tmpcopyup",
];

/// Whether the OCI specification or the kernel's mount(8) knows this option; `key=value` ones are the file system's own.
pub(super) fn is_mount_option(option: &str) -> bool {
    let is = |words: &[&str], prefixes: &[&str]| {
        let mut bare = prefixes.iter().filter_map(|p| option.strip_prefix(p));
        bare.any(|word| words.contains(&word))
    };
    is(FLAGS, &["", "no", "r", "rno"])
        || is(OF_FILE_SYSTEMS, &["", "no"])
        || is(OF_TREES, &["", "r"])
        || is(OTHERS, &[""])
}

pub(super) const NAMESPACES: &[&str] = &[
    "cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts",
];
/// Sysctls that belong to a namespace, by their start.
pub(super) const SYSCTLS: &[&str] = &[
    "fs.mqueue.",
    "kernel.msg",
    "kernel.sem",
    "kernel.shm",
    "net.",
    "kernel.domainname",
    "kernel.hostname",
];
