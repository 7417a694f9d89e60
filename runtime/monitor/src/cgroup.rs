//! The monitor's use of the container's cgroups: join, sub-groups for execs, kill, OOM count.
//!
//! The daemon makes and limits the directories; this module adds only `exec-<n>` below them. Paths
//! come from the launch file, never from `/proc/<init>/cgroup`: a failed create has no init.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cgroup_tree::{self, ignore_missing, is_gone};
use crate::record::CgroupDir;
use crate::sys;

/// Limit for killed processes to exit.
const DYING: Duration = Duration::from_secs(10);

pub struct Cgroups {
    v1: Vec<(String, PathBuf)>,
    unified: Option<PathBuf>,
}

impl Cgroups {
    pub fn new(dirs: &[CgroupDir]) -> Cgroups {
        let unified = dirs
            .iter()
            .find(|d| d.unified())
            .map(|d| PathBuf::from(&d.path));
        let v1 = dirs.iter().filter(|d| !d.unified());
        Cgroups {
            v1: v1
                .map(|d| (d.controller.clone(), PathBuf::from(&d.path)))
                .collect(),
            unified,
        }
    }

    pub fn unified(&self) -> Option<&Path> {
        self.unified.as_deref()
    }

    fn v1(&self, controller: &str) -> Option<&Path> {
        let found = self
            .v1
            .iter()
            .find(|(names, _)| names.split(',').any(|n| n == controller));
        found.map(|(_, path)| path.as_path())
    }

    /// Opens the `tasks` files of the v1 directories. A single-threaded process joins by writing
    /// `0`, without the 7 to 20 ms that a write to `cgroup.procs` waits for RCU.
    pub fn tasks(&self) -> io::Result<Vec<File>> {
        self.v1
            .iter()
            .map(|(_, dir)| open_write(&dir.join("tasks")))
            .collect()
    }

    /// Moves the calling, single-threaded process to every v1 directory.
    pub fn join(&self) -> io::Result<()> {
        for ((_, dir), mut tasks) in self.v1.iter().zip(self.tasks()?) {
            tasks
                .write_all(b"0")
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", dir.display())))?;
        }
        Ok(())
    }

    /// The parent of exec groups: on v2, where `cgroup.kill` kills a group; else beside its pids.
    fn session_parent(&self) -> Option<&Path> {
        self.unified()
            .or_else(|| self.v1("pids"))
            .or_else(|| self.v1.first().map(|(_, p)| p.as_path()))
    }

    /// Makes `exec-<n>`, or adds a random suffix if the container itself has taken that name.
    ///
    /// # Errors
    /// The kernel's, with the path.
    pub fn make_session(&self, n: u32) -> io::Result<Option<Session>> {
        let Some(parent) = self.session_parent() else {
            return Ok(None);
        };
        let mut path = parent.join(format!("exec-{n}"));
        let mut made = fs::create_dir(&path);
        if made
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists)
        {
            path = parent.join(format!("exec-{n}-{:016x}", sys::random()?));
            made = fs::create_dir(&path);
        }
        made.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        Ok(Some(Session {
            path,
            v2: self.unified.is_some(),
        }))
    }

    /// Kills everything in the container's groups and waits for its end (bounded).
    pub fn kill_all(&self) -> io::Result<()> {
        if let Some(dir) = self.unified() {
            match kill_v2(dir, self.v1("freezer")) {
                Err(e) if is_gone(&e) => {}
                other => return other,
            }
        }
        match self.v1("freezer").or(self.session_parent()) {
            Some(dir) => kill_by_hand(dir),
            None => Ok(()),
        }
    }

    /// Lists the processes below, once (for signals other than SIGKILL).
    pub fn processes(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        if let Some(dir) = self.session_parent() {
            let _ = cgroup_tree::list_processes(dir, &mut pids); // or those found so far
        }
        pids
    }

    /// The CPU limit in millionths of a processor: the lowest of the container's cgroup and of those
    /// above it.
    pub fn cpu_limit(&self) -> Option<u64> {
        let (dir, limit) = match self.v1("cpu") {
            Some(dir) => (dir, cpu_limit_v1 as fn(&Path) -> Option<u64>),
            None => (self.unified()?, cpu_limit_v2 as _),
        };
        dir.ancestors().filter_map(limit).min()
    }

    /// The number of OOM kills (CRI-144). Must be read before the group is removed.
    pub fn oom_kills(&self) -> u64 {
        let text = match (self.v1("memory"), self.unified()) {
            (Some(dir), _) => fs::read_to_string(dir.join("memory.oom_control")),
            (None, Some(dir)) => fs::read_to_string(dir.join("memory.events")),
            _ => return 0,
        };
        let text = text.unwrap_or_default();
        text.lines()
            .filter_map(|l| l.strip_prefix("oom_kill "))
            .filter_map(|n| n.trim().parse::<u64>().ok())
            .sum()
    }

    /// Removes the remaining exec groups.
    pub fn remove_sessions(&self) -> io::Result<()> {
        let Some(parent) = self.session_parent() else {
            return Ok(());
        };
        let entries = match fs::read_dir(parent) {
            Err(e) if is_gone(&e) => return Ok(()),
            other => other?,
        };
        for entry in entries
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with("exec-"))
        {
            cgroup_tree::remove(&entry.path())?;
        }
        Ok(())
    }
}

fn cpu_limit_v1(dir: &Path) -> Option<u64> {
    let quota = fs::read_to_string(dir.join("cpu.cfs_quota_us")).ok()?;
    // -1 means unlimited.
    let quota = quota.trim().parse().ok()?;
    let period = fs::read_to_string(dir.join("cpu.cfs_period_us")).ok()?;
    millionths(quota, period.trim().parse().ok()?)
}

fn cpu_limit_v2(dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
    // `max` means unlimited.
    let (quota, period) = text.trim().split_once(' ')?;
    millionths(quota.parse().ok()?, period.parse().ok()?)
}

fn millionths(quota: u64, period: u64) -> Option<u64> {
    quota.saturating_mul(1_000_000).checked_div(period)
}

pub struct Session {
    path: PathBuf,
    v2: bool,
}

impl Session {
    /// For CLONE_INTO_CGROUP.
    pub fn directory(&self) -> io::Result<Option<File>> {
        self.v2.then(|| File::open(&self.path)).transpose()
    }

    /// Opens the v1 file to join by.
    pub fn tasks(&self) -> io::Result<Option<File>> {
        let tasks = || open_write(&self.path.join("tasks"));
        (!self.v2).then(tasks).transpose()
    }

    pub fn kill(&self) -> io::Result<()> {
        if self.v2 {
            match write_file(&self.path.join("cgroup.kill"), b"1") {
                Err(e) if is_gone(&e) => {}
                other => return other,
            }
        }
        kill_by_hand(&self.path)
    }

    /// Removes the group. Returns false if a process is still in it.
    pub fn remove(&self) -> bool {
        ignore_missing(fs::remove_dir(&self.path)).is_ok()
    }
}

/// Writes `cgroup.kill` and waits. [`is_gone`] errors: the kernel lacks the file, or no directory.
fn kill_v2(dir: &Path, freezer: Option<&Path>) -> io::Result<()> {
    write_file(&dir.join("cgroup.kill"), b"1")?;
    // A frozen v1 group keeps killed processes from exiting; the others exit and cannot freeze.
    let thawed = freezer.map_or(Ok(()), cgroup_tree::thaw);
    let events = File::open(dir.join("cgroup.events"))?;
    let deadline = Instant::now() + DYING;
    loop {
        let mut text = [0; 256];
        let n = events.read_at(&mut text, 0)?;
        if String::from_utf8_lossy(&text[..n])
            .lines()
            .any(|l| l == "populated 0")
        {
            return Ok(());
        }
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            return thawed.and_then(|()| Err(still_there()));
        };
        // The kernel signals POLLPRI when `populated` changes.
        sys::poll_one(
            events.as_fd(),
            libc::POLLPRI,
            left.as_millis().min(1000) as i32,
        )?;
    }
}

/// Kills without `cgroup.kill`: freeze against forks, kill all, thaw; repeat until empty.
fn kill_by_hand(dir: &Path) -> io::Result<()> {
    let freezer = dir.join("freezer.state");
    let deadline = Instant::now() + DYING;
    let mut pause = 1;
    loop {
        let mut pids = Vec::new();
        let frozen = freezer.exists() && write_file(&freezer, b"FROZEN").is_ok();
        let listed = cgroup_tree::list_processes(dir, &mut pids);
        for pid in &pids {
            let _ = sys::kill(*pid, libc::SIGKILL); // it may have exited
        }
        if frozen {
            write_file(&freezer, b"THAWED")?;
        }
        if pids.is_empty() {
            return listed;
        }
        let thawed = if frozen {
            cgroup_tree::thaw(dir)
        } else {
            Ok(())
        };
        if Instant::now() > deadline {
            return thawed.and_then(|()| Err(still_there()));
        }
        sys::poll(&mut [], pause)?;
        pause = (pause * 2).min(50);
    }
}

fn still_there() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "killed processes did not exit")
}

fn open_write(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroups(controller: &str, path: &Path) -> Cgroups {
        Cgroups::new(&[CgroupDir {
            controller: controller.to_owned(),
            path: path.to_str().unwrap().to_owned(),
        }])
    }

    #[test]
    fn the_cpu_limit_is_the_lowest_on_the_way_up() {
        let tmp = tempfile::tempdir().unwrap();
        let container = tmp.path().join("pod/container");
        fs::create_dir_all(&container).unwrap();
        let of = || cgroups("", &container).cpu_limit();
        assert_eq!(of(), None);
        fs::write(container.join("cpu.max"), "max 100000\n").unwrap();
        assert_eq!(of(), None);
        fs::write(tmp.path().join("pod/cpu.max"), "50000 100000\n").unwrap();
        assert_eq!(of(), Some(500_000));
        fs::write(container.join("cpu.max"), "1000 100000\n").unwrap();
        assert_eq!(of(), Some(10_000));
        fs::write(container.join("cpu.max"), "250000 100000\n").unwrap();
        assert_eq!(of(), Some(500_000));
        for malformed in ["", "max", "1000", "1000 0", "-1 100000", "a b"] {
            fs::write(container.join("cpu.max"), malformed).unwrap();
            assert_eq!(of(), Some(500_000), "{malformed:?}");
        }
    }

    #[test]
    fn the_cpu_limit_of_v1_is_quota_and_period() {
        let tmp = tempfile::tempdir().unwrap();
        let of = || cgroups("cpu,cpuacct", tmp.path()).cpu_limit();
        let write = |name: &str, text: &str| fs::write(tmp.path().join(name), text).unwrap();
        assert_eq!(of(), None);
        write("cpu.cfs_period_us", "50000\n");
        write("cpu.cfs_quota_us", "-1\n");
        assert_eq!(of(), None);
        write("cpu.cfs_quota_us", "1000\n");
        assert_eq!(of(), Some(20_000));
        assert_eq!(cgroups("memory", tmp.path()).cpu_limit(), None);
    }
}
