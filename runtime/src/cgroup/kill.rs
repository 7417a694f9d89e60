//! Kills all processes in a cgroup (CRI-258), and waits for notifications of the kernel.
//!
//! In the unified tree `cgroup.kill` reaches every descendant at once, including running forks. On
//! v1, and for processes that left the unified cgroup, a loop freezes, kills each process through a
//! pidfd and thaws, until no process is left or the time is up.

use super::error::{Error, Result};
use super::group::Cgroup;
use super::io;
use crate::blocking::blocking;
use cairn_monitor::cgroup_tree::{self, is_gone};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout_at};

/// First and longest pause where the kernel sends no notification.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// The wait for the v1 freezer in one round of killing. It narrows the race with forks; the rounds
/// close it.
const FREEZE_ROUND: Duration = Duration::from_millis(100);

impl Cgroup {
    /// Sorted pids of all processes in this cgroup and below, as in this pid namespace, without
    /// zombies. Empty if the cgroup does not exist.
    pub fn procs(&self) -> Result<Vec<u32>> {
        let dirs = self.unified_dir().into_iter().chain(self.v1_dir());
        let mut pids = BTreeSet::new();
        let mut listed = Vec::new();
        for dir in dirs {
            cgroup_tree::list_processes(&dir, &mut listed)
                .map_err(|source| Error::io(dir, "list processes", source))?;
            pids.extend(listed.drain(..).filter_map(|pid| u32::try_from(pid).ok()));
        }
        Ok(pids.into_iter().collect())
    }

    /// Whether a live process is in this cgroup or below.
    pub fn populated(&self) -> Result<bool> {
        Ok(!self.procs()?.is_empty())
    }

    /// [`Self::procs`], which may take long: the container chooses the number of cgroups.
    async fn list(&self) -> Result<Vec<u32>> {
        let this = self.clone();
        blocking(move || this.procs()).await
    }

    /// The v1 directory with the most reliable list of processes.
    fn v1_dir(&self) -> Option<PathBuf> {
        let hierarchies = self.host.v1();
        let with = |name| hierarchies.iter().find(|h| h.has(name));
        let chosen = with("freezer").or_else(|| with("pids"));
        let chosen = chosen.or_else(|| hierarchies.first())?;
        Some(self.path.below(&chosen.mount))
    }

    /// Kills every process in this cgroup and below; returns when none is alive. Their parent may
    /// not have reaped them yet. Idempotent.
    ///
    /// # Errors
    /// `TimedOut` after `wait`, with the number of remaining processes (such as those in D state).
    pub async fn kill_all(&self, wait: Duration) -> Result<()> {
        let deadline = Instant::now() + wait;
        let mut backoff = Backoff::new(deadline);
        loop {
            self.kill_unified(deadline).await?;
            if self.list().await?.is_empty() {
                return Ok(());
            }
            self.kill_each(deadline).await?;
            let left = self.list().await?;
            if left.is_empty() {
                return Ok(());
            }
            if !backoff.pause().await {
                let left = format!("{} processes remain", left.len());
                return Err(self.timed_out("kill", wait, left));
            }
        }
    }

    /// Writes `cgroup.kill` and waits for "populated 0". Does nothing without that file.
    async fn kill_unified(&self, deadline: Instant) -> Result<()> {
        let Some(dir) = self.unified_dir() else {
            return Ok(());
        };
        match io::write(&dir.join("cgroup.kill"), "1") {
            Ok(()) => {}
            Err(e) if is_gone(&e) => return Ok(()),
            Err(source) => {
                return Err(Error::io(dir.join("cgroup.kill"), "kill", source));
            }
        }
        // A task frozen by v1 does not die before it is thawed.
        self.thaw_v1().await;
        wait_unpopulated(&dir, deadline).await;
        Ok(())
    }

    async fn kill_each(&self, deadline: Instant) -> Result<()> {
        let round = deadline.min(Instant::now() + FREEZE_ROUND);
        self.freeze_v1(round).await;
        let this = self.clone();
        let sent = blocking(move || this.kill_listed()).await;
        self.thaw_v1().await;
        sent
    }

    /// Sends SIGKILL to each process in the cgroup. A pid may be reused between listing and kill,
    /// so that a pidfd is opened first, and used only if the pid is then still listed.
    fn kill_listed(&self) -> Result<()> {
        let open = |pid: u32| -> Option<(u32, OwnedFd)> {
            let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
            Some((pid, pidfd_open(raw, PidfdFlags::empty()).ok()?))
        };
        // In pieces, so that a fork bomb does not exhaust our descriptors.
        for piece in self.procs()?.chunks(256) {
            let opened: Vec<_> = piece.iter().filter_map(|pid| open(*pid)).collect();
            let still: BTreeSet<u32> = self.procs()?.into_iter().collect();
            for (_, process) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
                // ESRCH: it has already died.
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
        Ok(())
    }

    /// Freezes until the deadline. v1 sends no notification, and may need a second write.
    async fn freeze_v1(&self, deadline: Instant) {
        let Some(dir) = self.dir_of("freezer") else {
            return;
        };
        let state = dir.join("freezer.state");
        let mut backoff = Backoff::new(deadline);
        while io::write(&state, "FROZEN").is_ok() {
            let frozen = io::read(&state).is_ok_and(|text| text.trim() == "FROZEN");
            if frozen || !backoff.pause().await {
                return;
            }
        }
    }

    /// Best effort: a task that stays frozen is still listed at the end of the round.
    async fn thaw_v1(&self) {
        let Some(dir) = self.dir_of("freezer") else {
            return;
        };
        if let Err(error) = blocking(move || cgroup_tree::thaw(&dir)).await {
            tracing::warn!(cgroup = %self.path, %error, "cannot thaw the cgroup");
        }
    }

    pub(super) fn timed_out(&self, step: &'static str, after: Duration, left: String) -> Error {
        Error::TimedOut {
            cgroup: self.path.to_string(),
            step,
            after,
            left,
        }
    }
}

/// Waits until the unified cgroup at `dir` is unpopulated or removed, or for the deadline; POLLPRI
/// of `cgroup.events` wakes it. A file that cannot be polled (a recorded tree) ends the wait.
pub(super) async fn wait_unpopulated(dir: &Path, deadline: Instant) {
    let Ok(file) = File::open(dir.join("cgroup.events")) else {
        return;
    };
    #[expect(
        deprecated,
        reason = "the successor is unsafe for the sake of other types; a File owns its descriptor"
    )]
    let watched = AsyncFd::with_interest(file, Interest::PRIORITY);
    let Ok(events) = watched else {
        return;
    };
    // Reading through the polled file itself re-arms its notification.
    while let Ok(text) = read_again(events.get_ref()) {
        if text.lines().any(|line| line == "populated 0") {
            return;
        }
        match timeout_at(deadline, events.ready(Interest::PRIORITY)).await {
            Ok(Ok(mut guard)) => guard.clear_ready(),
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

fn read_again(file: &File) -> std::io::Result<String> {
    use std::os::unix::fs::FileExt;
    let mut buffer = [0_u8; 256];
    let length = file.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// A doubling pause with a deadline.
pub(super) struct Backoff {
    pause: Duration,
    deadline: Instant,
}

impl Backoff {
    pub(super) fn new(deadline: Instant) -> Self {
        Self {
            pause: FIRST_PAUSE,
            deadline,
        }
    }

    /// Sleeps; false if the deadline has already passed.
    pub(super) async fn pause(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.deadline {
            return false;
        }
        sleep_until(self.deadline.min(now + self.pause)).await;
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
        true
    }
}
