//! Words known to runtimes.

/// Mount options, each also negated (`noexec`), and both also for all mounts below (`rexec`,
/// `rnoexec`).
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
/// Each also negated.
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

/// Whether the OCI specification or mount(8) has this option; `key=value` ones belong to the file
/// system.
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
/// Prefixes of sysctls that belong to a namespace.
pub(super) const SYSCTLS: &[&str] = &[
    "fs.mqueue.",
    "kernel.msg",
    "kernel.sem",
    "kernel.shm",
    "net.",
    "kernel.domainname",
    "kernel.hostname",
];
