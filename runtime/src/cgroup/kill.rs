//! Kill everything in a cgroup (CRI-258), and wait for what the kernel announces.
//!
//! Killing needs no loop where the unified tree is: `cgroup.kill` reaches every descendant at once,
//! also forks under way. On v1, and for processes that left the unified cgroup, it is: freeze, kill
//! each through a pidfd, thaw, until nothing is left or the time is up.

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

/// First and longest pause where the kernel announces nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How long one round of killing waits for the v1 freezer. It only narrows the race with forks, the
/// rounds close it.
const FREEZE_ROUND: Duration = Duration::from_millis(100);

impl Cgroup {
    /// Pids of all processes in this cgroup and below, sorted, as this pid namespace sees them.
    /// Zombies are not among them. A cgroup that does not exist has none.
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

    /// True while a live process is in this cgroup or below.
    pub fn populated(&self) -> Result<bool> {
        Ok(!self.procs()?.is_empty())
    }

    /// [`Self::procs`], which may take long: the container chooses how many cgroups there are.
    async fn list(&self) -> Result<Vec<u32>> {
        let this = self.clone();
        blocking(move || this.procs()).await
    }

    /// The v1 directory that tells best who is in the cgroup.
    fn v1_dir(&self) -> Option<PathBuf> {
        let hierarchies = self.host.v1();
        let with = |name| hierarchies.iter().find(|h| h.has(name));
        let chosen = with("freezer").or_else(|| with("pids"));
        let chosen = chosen.or_else(|| hierarchies.first())?;
        Some(self.path.below(&chosen.mount))
    }

    /// Kills every process in this cgroup and below and returns when none is left alive. They are
    /// then dead but perhaps not reaped: that is their parent's part. Idempotent.
    ///
    /// # Errors
    /// `TimedOut` after `wait`, with the number of processes left (such as those in D state).
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

    /// `cgroup.kill`, then the wait for "populated 0". Does nothing where there is no such file.
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

    /// SIGKILL to each process now in the cgroup. A pid may be reused between the listing and
    /// the kill, so a pidfd is opened first and used only if the pid is then still listed.
    fn kill_listed(&self) -> Result<()> {
        let open = |pid: u32| -> Option<(u32, OwnedFd)> {
            let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
            Some((pid, pidfd_open(raw, PidfdFlags::empty()).ok()?))
        };
        // In pieces, so that a fork bomb does not use up our descriptors.
        for piece in self.procs()?.chunks(256) {
            let held: Vec<_> = piece.iter().filter_map(|pid| open(*pid)).collect();
            let still: BTreeSet<u32> = self.procs()?.into_iter().collect();
            for (_, process) in held.iter().filter(|(pid, _)| still.contains(pid)) {
                // ESRCH: it died meanwhile, which is what is wanted.
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
        Ok(())
    }

    /// Until all is frozen, or the deadline. v1 announces nothing, and may need to be told again.
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

    /// Best effort: what is still frozen then is still there at the end of the round.
    async fn thaw_v1(&self) {
        let Some(dir) = self.dir_of("freezer") else {
            return;
        };
        if let Err(error) = blocking(move || cgroup_tree::thaw(&dir)).await {
            tracing::warn!(cgroup = %self.path, %error, "cannot be thawed");
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

/// Waits until the unified cgroup at `dir` has no live process, or is gone, or the deadline has passed: woken by the
/// kernel's notification (POLLPRI) of `cgroup.events`. On a file that cannot be polled (a recorded tree) it does not wait.
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

/// A doubling pause with an end.
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

    /// Sleeps; false if the deadline has passed instead.
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
