//! Sources of metrics beside cgroups: a container's processes, and filesystems. Reads `/proc` and
//! `/sys`; every list is bounded, and entries that vanish are left out.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Limit of processes counted per container.
const MAX_PROCESSES: usize = 4096;
/// Limit of open files counted per container.
const MAX_FILES: usize = 100_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processes {
    pub processes: u64,
    pub threads: u64,
    pub file_descriptors: u64,
    pub sockets: u64,
    /// Soft limit on open files of the first process; `None` if unlimited or unknown.
    pub max_open_files: Option<u64>,
}

/// Counts over these pids, as [`Cgroup::procs`](crate::cgroup::Cgroup::procs) returns them.
pub fn processes(pids: &[u32]) -> Processes {
    processes_at(Path::new("/proc"), pids)
}

fn processes_at(proc: &Path, pids: &[u32]) -> Processes {
    let mut all = Processes::default();
    for pid in pids.iter().take(MAX_PROCESSES) {
        let dir = proc.join(pid.to_string());
        let Ok(status) = std::fs::read_to_string(dir.join("status")) else {
            continue;
        };
        all.processes += 1;
        all.threads += value_after(&status, "Threads:").unwrap_or(1);
        if all.max_open_files.is_none() {
            let limits = std::fs::read_to_string(dir.join("limits")).unwrap_or_default();
            all.max_open_files = value_after(&limits, "Max open files");
        }
        count_files(&dir.join("fd"), &mut all);
    }
    all
}

fn count_files(dir: &Path, all: &mut Processes) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        if all.file_descriptors >= MAX_FILES as u64 {
            return;
        }
        all.file_descriptors += 1;
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let socket = target
            .as_os_str()
            .as_encoded_bytes()
            .starts_with(b"socket:");
        all.sockets += u64::from(socket);
    }
}

/// The first number after `name` at the start of a line.
fn value_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The filesystem of the writable layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filesystem {
    /// `/dev/vda1`; `major:minor` if it has no device node.
    pub device: String,
    pub size_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// # Errors `path` does not exist or its filesystem cannot be read.
pub fn filesystem(path: &Path) -> std::io::Result<Filesystem> {
    let stat = rustix::fs::statvfs(path)?;
    let device = std::fs::metadata(path)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Ok(Filesystem {
        device: device_name(major, minor),
        size_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    })
}

/// `/dev/vda1` for a block device's numbers; `major:minor` if it has no name.
pub fn device_name(major: u32, minor: u32) -> String {
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}"));
    let name = link
        .ok()
        .and_then(|to| Some(to.file_name()?.to_str()?.to_owned()));
    name.map_or_else(|| format!("{major}:{minor}"), |name| format!("/dev/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_is_counted_and_a_vanished_one_is_not() {
        let _socket = std::os::unix::net::UnixStream::pair().unwrap();
        let counted = processes(&[std::process::id(), u32::MAX]);
        assert_eq!(counted.processes, 1);
        assert!(counted.threads >= 1 && counted.sockets >= 2, "{counted:?}");
        assert!(counted.file_descriptors > counted.sockets, "{counted:?}");
    }

    #[test]
    fn an_unlimited_number_of_files_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let one = dir.path().join("7");
        std::fs::create_dir(&one).unwrap();
        std::fs::write(one.join("status"), "Name:\tx\nThreads:\t5\n").unwrap();
        let limits =
            |soft: &str| format!("Limit  Soft\nMax open files            {soft}  9 files\n");
        std::fs::write(one.join("limits"), limits("1024")).unwrap();
        let counted = processes_at(dir.path(), &[7]);
        assert_eq!((counted.threads, counted.max_open_files), (5, Some(1024)));
        std::fs::write(one.join("limits"), limits("unlimited")).unwrap();
        assert_eq!(processes_at(dir.path(), &[7]).max_open_files, None);
    }

    #[test]
    fn a_filesystem_has_a_size_and_a_name() {
        let filesystem = filesystem(Path::new("/")).unwrap();
        assert!(filesystem.size_bytes > 0 && !filesystem.device.is_empty());
        assert_eq!(device_name(4095, 4095), "4095:4095");
    }
}
