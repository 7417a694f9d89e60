//! The kernel's view of a daemon's resources: mounts, links, processes, cgroups, files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::until::blocking;

const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The directories of a cgroup in every hierarchy that has it: v2, v1 and hybrid alike.
pub fn cgroup_dirs(path: &str) -> Vec<PathBuf> {
    let path = path.trim_start_matches('/');
    let mut roots = vec![PathBuf::from(CGROUP_ROOT)];
    roots.extend(subdirs(Path::new(CGROUP_ROOT)));
    let mut dirs: Vec<PathBuf> = roots
        .into_iter()
        .map(|root| fs::canonicalize(&root).unwrap_or(root).join(path))
        .filter(|dir| dir.is_dir())
        .collect();
    dirs.sort();
    dirs.dedup();
    dirs
}

/// The directory of a cgroup in the hierarchy that has this controller (v1) or the unified one.
pub fn cgroup_dir(controller: &str, path: &str) -> Option<PathBuf> {
    let path = path.trim_start_matches('/');
    [Path::new(CGROUP_ROOT).join(controller), CGROUP_ROOT.into()]
        .into_iter()
        .map(|root| root.join(path))
        .find(|dir| dir.is_dir())
}

/// Direct subdirectories; empty if the directory is missing.
pub fn subdirs(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path())
        .collect()
}

/// All paths below a directory, relative to it.
pub fn tree(dir: &Path) -> BTreeSet<String> {
    fn walk(base: &Path, dir: &Path, into: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if let Ok(name) = path.strip_prefix(base) {
                into.insert(name.display().to_string());
            }
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                walk(base, &path, into);
            }
        }
    }
    let mut all = BTreeSet::new();
    walk(dir, dir, &mut all);
    all
}

/// Processes in a cgroup and everything below it, in the machine's pids.
pub fn cgroup_pids(path: &str) -> BTreeSet<u32> {
    fn walk(dir: &Path, into: &mut BTreeSet<u32>) {
        let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        into.extend(procs.lines().filter_map(|l| l.parse::<u32>().ok()));
        for child in subdirs(dir) {
            walk(&child, into);
        }
    }
    let mut pids = BTreeSet::new();
    for dir in cgroup_dirs(path) {
        walk(&dir, &mut pids);
    }
    pids
}

/// The smallest memory limit below a cgroup: that of its one container.
pub fn memory_limit_below(parent: &str) -> Option<i64> {
    let dir = cgroup_dir("memory", parent)?;
    let files = tree(&dir).into_iter();
    let limits = files
        .filter(|p| p.ends_with("memory.limit_in_bytes") || p.ends_with("memory.max"))
        .filter_map(|p| fs::read_to_string(dir.join(p)).ok()?.trim().parse().ok());
    limits.min()
}

/// Removes a cgroup with all below it in every hierarchy; its processes must be ending. Returns the
/// remaining directories.
pub fn remove_cgroup(path: &str) -> Vec<PathBuf> {
    fn remove(dir: &Path) -> io::Result<()> {
        for child in subdirs(dir) {
            remove(&child)?;
        }
        match fs::remove_dir(dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
    let mut left = cgroup_dirs(path);
    // A killed process leaves its cgroup a moment after it is reaped.
    blocking(Duration::from_secs(10), || {
        left.retain(|dir| remove(dir).is_err());
        left.is_empty()
    });
    left
}

/// The mount points in the mount namespace of a process.
pub fn mounts(pid: u32) -> BTreeSet<String> {
    let info = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    info.lines()
        .filter_map(|line| line.split(' ').nth(4).map(str::to_owned))
        .collect()
}

/// The /proc directories of processes in the pid namespace of a process, with their commands.
fn commands(yard: u32) -> impl Iterator<Item = (PathBuf, String)> {
    let proc = PathBuf::from(format!("/proc/{yard}/root/proc"));
    subdirs(&proc).into_iter().filter_map(|dir| {
        let _process: u32 = dir.file_name()?.to_str()?.parse().ok()?;
        let comm = fs::read_to_string(dir.join("comm")).ok()?;
        Some((dir, comm.trim_end().to_owned()))
    })
}

/// Whether a process of this command has no working directory: it was removed, or the process ends.
pub fn works_nowhere(yard: u32, command: &str) -> bool {
    commands(yard).any(|(dir, comm)| {
        let cwd = fs::read_link(dir.join("cwd"));
        comm == command && cwd.map_or(true, |cwd| cwd.to_string_lossy().ends_with(" (deleted)"))
    })
}

/// Processes in the pid namespace of a process, counted by their command.
pub fn processes(yard: u32) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    // Up to two processes of `cairn look` are kept for the next path, for a minute.
    let mut kept = 2;
    for (process, comm) in commands(yard) {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        if kept > 0 && line.ends_with(b"/cairn\0look\0") {
            kept -= 1;
            continue;
        }
        *counts.entry(comm).or_default() += 1;
    }
    let all = counts.into_iter();
    all.map(|(comm, count)| format!("{comm} x{count}"))
        .collect()
}

/// A field of `/proc/<pid>/status`.
pub fn status_field(proc: &Path, field: &str) -> Option<String> {
    let status = fs::read_to_string(proc.join("status")).ok()?;
    status.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name == field).then(|| value.trim().to_owned())
    })
}
