//! The PID namespace that a container joins, of its pod or of another container, and its procfs.
//!
//! Both are opened through a pidfd of a process in the namespace, because its pid may be reused.
//! libcontainer does not know of the namespace: its init would be visible inside while it still has
//! the host's root. Init is born into it at the end (`birth.rs`).

#![expect(clippy::disallowed_methods, reason = "the host's procfs")]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cairn_monitor::record::{JOIN, Join};
use cairn_monitor::{mount_tree, own_file, rooted, stat, sys};
use rustix::fs::AtFlags;

use crate::place;

pub(crate) struct Joined {
    pub(crate) namespace: File,
    /// Copies of the procfs that the process sees at `/proc`, without the mounts below.
    pub(crate) procfs: Vec<OwnedFd>,
}

/// `path` comes from the spec. The daemon recorded its process, unless a plugin chose the path.
pub(crate) fn take(path: &Path, copies: usize) -> Result<Joined, String> {
    let at = |e: io::Error| format!("join PID namespace {}: {e}", path.display());
    let ended = || {
        format!(
            "join PID namespace {}: its process has ended",
            path.display()
        )
    };
    let (pid, born, procfs_path) = match own_file::read_to_string(JOIN) {
        Ok(text) => {
            let join = Join::from_text(&text).map_err(|e| format!("read {JOIN}: {e}"))?;
            let procfs_path = Some(join.procfs).filter(|path| !path.is_empty());
            (join.pid, Some(join.start_time), procfs_path)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => (process_1_of(path)?, None, None),
        Err(e) => return Err(format!("read {JOIN}: {e}")),
    };
    let pinned_process = match sys::pidfd_open(pid) {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Err(ended()),
        other => other.map_err(at)?,
    };
    let taken = (|| {
        if born.is_some_and(|born| stat::start_time(pid).is_ok_and(|now| now != born)) {
            return Err(ended());
        }
        let open = |name| File::open(format!("/proc/{pid}/ns/{name}")).map_err(at);
        let namespace = open("pid")?;
        let procfs = match (copies, procfs_path) {
            (0, _) => Ok(Vec::new()),
            (_, Some(path)) => File::open(path).and_then(|at| copies_of(at, &namespace, copies)),
            (_, None) => procfs_of(&open("mnt")?, &namespace, copies),
        };
        let procfs =
            procfs.map_err(|e| format!("take the procfs of the PID namespace to join: {e}"))?;
        Ok(Joined { namespace, procfs })
    })();
    // Lookups by pid are valid only if the process is still alive.
    if has_ended(&pinned_process).map_err(at)? {
        return Err(ended());
    }
    taken
}

fn has_ended(pidfd: &OwnedFd) -> io::Result<bool> {
    Ok(sys::poll_one(pidfd.as_fd(), libc::POLLIN, 0)? != 0)
}

/// Finds process 1 of a namespace that a plugin chose by its path.
fn process_1_of(path: &Path) -> Result<i32, String> {
    let at = |e: io::Error| format!("join PID namespace {}: {e}", path.display());
    let wanted = identity(fs::metadata(path).map_err(at)?);
    let pids = fs::read_dir("/proc").map_err(at)?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut of_it = pids.filter(|pid| {
        fs::metadata(format!("/proc/{pid}/ns/pid")).is_ok_and(|m| identity(m) == wanted)
            && fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|s| is_process_1(&s))
    });
    of_it.next().ok_or_else(|| {
        let path = path.display();
        format!("join PID namespace {path}: it has no process 1")
    })
}

fn is_process_1(status: &str) -> bool {
    let mut lines = status.lines();
    let pids = lines.find_map(|l| l.strip_prefix("NSpid:"));
    pids.and_then(|pids| pids.split_whitespace().last()) == Some("1")
}

fn identity(metadata: fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// The container may have anything at `/proc`, and so may pause processes of older versions.
fn procfs_of(mounts: &File, namespace: &File, copies: usize) -> io::Result<Vec<OwnedFd>> {
    place::and_return(|| {
        place::enter_mounts(mounts)?;
        let found = rooted::directory(sys::open_root()?.as_fd(), b"/proc")?;
        copies_of(found, namespace, copies)
    })?
}

fn copies_of(found: impl AsFd, namespace: &File, copies: usize) -> io::Result<Vec<OwnedFd>> {
    check_shows(found.as_fd(), namespace)?;
    let copies = (0..copies).map(|_| mount_tree::copy_of(found.as_fd(), false));
    copies.collect()
}

/// Fails unless `found` is the root of this PID namespace's procfs.
fn check_shows(found: BorrowedFd<'_>, namespace: &File) -> io::Result<()> {
    const ROOT_INODE: u64 = 1;
    let is_root = rustix::fs::fstatfs(found)?.f_type == rustix::fs::PROC_SUPER_MAGIC
        && rustix::fs::fstat(found)?.st_ino == ROOT_INODE;
    let shown = || rustix::fs::statat(found, c"1/ns/pid", AtFlags::empty());
    let namespace = rustix::fs::fstat(namespace)?;
    if is_root
        && shown().is_ok_and(|s| (s.st_dev, s.st_ino) == (namespace.st_dev, namespace.st_ino))
    {
        return Ok(());
    }
    Err(io::Error::other(
        "the process has another file system at /proc",
    ))
}

#[cfg(test)]
mod tests {
    use super::is_process_1;

    #[test]
    fn process_1_is_recognized_by_its_innermost_pid() {
        assert!(is_process_1("Name:\tx\nNSpid:\t4711\t1\n"));
        assert!(is_process_1("NSpid:\t1\n"));
        assert!(!is_process_1("NSpid:\t1\t4711\n"));
        assert!(!is_process_1("Name:\tx\n"));
    }
}
