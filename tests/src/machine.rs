//! The state of the machine that a runtime can change, to compare before and after.

use std::{collections::BTreeSet, fs, path::Path};

use testkit::look;

/// A snapshot: mounts, network devices, named network namespaces, cgroups, processes. One item per
/// line, for diff.
pub fn snapshot() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut add = |kind: &str, what: BTreeSet<String>| {
        all.extend(what.into_iter().map(|w| format!("{kind} {w}")));
    };
    add("mount", look::mounts(std::process::id()));
    add("link", names(Path::new("/sys/class/net")));
    add("netns", names(Path::new("/run/netns")));
    add("directory", known_directories());
    add("process", processes());
    let mut roots = vec![Path::new("/sys/fs/cgroup").to_path_buf()];
    roots.extend(look::subdirs(&roots[0]));
    for root in roots {
        let below = look::subdirs(&root).into_iter();
        add("cgroup", below.map(|d| d.display().to_string()).collect());
    }
    all
}

/// Whether a run caused a difference. Other tenants' mounts, processes and cgroups come and go, and
/// have other names.
pub fn ours(item: &str, run: &str) -> bool {
    item.contains(run)
        || item.contains(crate::daemon::PREFIX)
        || item.starts_with("link cairn")
        || item.starts_with("directory ")
}

/// Directories of runtimes, CNI programs and kubelets, with their entries.
fn known_directories() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for dir in [
        "/etc/cni/net.d",
        "/opt/nri/plugins",
        "/run/cairn",
        "/run/nri",
        "/var/lib/cairn",
        "/var/lib/cni",
        "/var/lib/cni/networks",
        "/var/lib/kubelet",
    ] {
        if Path::new(dir).is_dir() {
            all.insert(dir.to_owned());
        }
        let inside = names(Path::new(dir)).into_iter();
        all.extend(inside.map(|name| format!("{dir}/{name}")));
    }
    all
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Each process with its origin: command line, executable, root and working directory, and its run.
fn processes() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for dir in look::subdirs(Path::new("/proc")) {
        let Some(pid) = dir.file_name().and_then(|n| n.to_str()) else {
            continue;
        };
        if pid.parse::<u32>().is_err() || pid == std::process::id().to_string() {
            continue;
        }
        let link = |name: &str| fs::read_link(dir.join(name)).unwrap_or_default();
        let command = fs::read(dir.join("cmdline")).unwrap_or_default();
        let cgroup = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
        all.insert(format!(
            "{pid} {} exe={} root={} cwd={} cgroup={}",
            String::from_utf8_lossy(&command).replace('\0', " "),
            link("exe").display(),
            link("root").display(),
            link("cwd").display(),
            cgroup.replace('\n', ","),
        ));
    }
    all
}
