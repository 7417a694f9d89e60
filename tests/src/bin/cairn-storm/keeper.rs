//! The times of faults, and how each is applied to the arena and reverted.

use std::{
    collections::VecDeque,
    fs,
    io::Write as _,
    os::fd::AsFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use cairn_tests::rng::Rng;
use rustix::fs::FallocateFlags;

use crate::{
    arena::{Arena, Whole},
    fault::Fault,
    report::Report,
    target::{Process, Target},
    weather::{Cause, Token, Weather},
};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// The reversal of a lasting fault.
enum Relief {
    Continue(i32),
    Remove(PathBuf),
    /// Restores the content of the record at this path.
    Mend(Whole),
    /// Restores the soft limit of open files.
    Descriptors(i32, u64),
}

struct Lasting {
    until: Instant,
    relief: Relief,
    token: Token,
    /// Recovery time of the affected processes.
    after: Duration,
}

/// Applies the faults, one after the other, and reverts them.
pub(crate) struct Keeper<'a> {
    pub(crate) arena: Arena,
    pub(crate) weather: &'a Weather,
    pub(crate) report: &'a Report,
    rng: Rng,
    lasting: VecDeque<Lasting>,
}

/// Time limit of the wait for a short-lived process.
const HUNT: Duration = Duration::from_millis(1500);

impl<'a> Keeper<'a> {
    pub(crate) fn new(arena: Arena, weather: &'a Weather, report: &'a Report, seed: u64) -> Self {
        Self {
            arena,
            weather,
            report,
            rng: Rng::new(seed, "faults"),
            lasting: VecDeque::new(),
        }
    }

    /// Applies faults until `end`, then reverts all.
    ///
    /// # Errors
    /// When the daemon cannot be started any more.
    pub(crate) async fn storm(
        &mut self,
        faults: &[Fault],
        every: (u64, u64),
        end: Instant,
    ) -> Result<(), String> {
        let mut reported = Instant::now();
        while Instant::now() < end {
            let wait = self.rng.between(every.0 * 1000, every.1 * 1000 + 1);
            let next = Instant::now() + Duration::from_millis(wait);
            while Instant::now() < next.min(end) {
                self.watch().await?;
                tokio::time::sleep(Duration::from_millis(25)).await;
                if reported.elapsed() > Duration::from_secs(10) {
                    reported = Instant::now();
                    self.report.progress();
                }
            }
            if let Some(fault) = Fault::draw(faults, &mut self.rng) {
                self.strike(fault).await?;
            }
        }
        self.calm().await
    }

    /// Reverts faults that are due, and restarts the daemon.
    ///
    /// # Errors
    /// When the daemon cannot be started any more.
    pub(crate) async fn watch(&mut self) -> Result<(), String> {
        let now = Instant::now();
        // A full disk has no room for the restored bytes.
        let full = self.weather.now(|cause| *cause == Cause::Scarce);
        let (due, later) = std::mem::take(&mut self.lasting)
            .into_iter()
            .partition(|lasting| {
                lasting.until <= now && !(full && matches!(lasting.relief, Relief::Mend(..)))
            });
        self.lasting = later;
        let due: VecDeque<Lasting> = due;
        for lasting in due {
            self.relieve(lasting).await?;
        }
        self.arena.look_after().await
    }

    /// Reverts all faults.
    ///
    /// # Errors
    /// When the daemon cannot be started any more.
    pub(crate) async fn calm(&mut self) -> Result<(), String> {
        let mut all: Vec<Lasting> = std::mem::take(&mut self.lasting).into();
        // After the disk has room again.
        all.sort_by_key(|lasting| matches!(lasting.relief, Relief::Mend(..)));
        for lasting in all {
            self.relieve(lasting).await?;
        }
        self.arena.look_after().await
    }

    async fn relieve(&mut self, lasting: Lasting) -> Result<(), String> {
        match lasting.relief {
            Relief::Continue(pid) => self.arena.daemon.yard.kill(pid, SIGCONT).await,
            Relief::Remove(name) => {
                // After a reboot the file system may be removed.
                let _ = fs::remove_file(self.arena.seen(name));
            }
            Relief::Mend(record) => {
                self.arena.take_down(SIGKILL).await;
                let path = self.arena.seen(&record.path);
                let mended = fs::OpenOptions::new().write(true).open(&path);
                let mended = mended.and_then(|mut file| file.write_all(&record.content));
                if let Err(error) = mended
                    && !self.weather.is_doomed(&record.id, &record.pod)
                {
                    let what = format!("{}, torn, is gone: {error}", record.path.display());
                    self.report.violation(&what, &self.report.history());
                }
                self.arena.bring_up().await?;
            }
            Relief::Descriptors(pid, limit) => {
                if pid == self.arena.daemon.pid() {
                    self.limit(pid, limit).await;
                }
            }
        }
        self.weather.end(lasting.token, lasting.after);
        Ok(())
    }

    fn last(&mut self, seconds: (u64, u64), relief: Relief, token: Token, after: Duration) {
        let length = self.rng.between(seconds.0 * 1000, seconds.1 * 1000);
        self.lasting.push_back(Lasting {
            until: Instant::now() + Duration::from_millis(length),
            relief,
            token,
            after,
        });
    }

    async fn strike(&mut self, fault: Fault) -> Result<(), String> {
        let hit = match fault {
            Fault::KillDaemon | Fault::EndDaemon => {
                self.restart(fault).await?;
                true
            }
            Fault::HoldDaemon => {
                let token = self.weather.begin(Cause::Daemon);
                let pid = self.arena.daemon.pid();
                self.arena.daemon.yard.kill(pid, SIGSTOP).await;
                let after = Duration::from_secs(3);
                self.last((1, 5), Relief::Continue(pid), token, after);
                true
            }
            Fault::RootFull => self.fill("root/ballast"),
            Fault::StateFull => self.fill("state/ballast"),
            Fault::Descriptors => self.starve().await,
            Fault::TearRecord => self.tear().await?,
            Fault::Reboot => {
                // Stopped processes, full disks and limits end with the boot.
                self.arena.reboot().await?;
                true
            }
            _ => {
                let target = fault.target().expect("the others have one");
                self.hit(fault, target).await
            }
        };
        if hit {
            self.report.fault(fault.name());
        } else {
            self.report.missed(fault.name());
        }
        Ok(())
    }

    /// Ends the daemon; another one follows at once, or a little later.
    async fn restart(&mut self, fault: Fault) -> Result<(), String> {
        let signal = if fault == Fault::KillDaemon {
            SIGKILL
        } else {
            SIGTERM
        };
        let pause = self.rng.below(3) * self.rng.below(700);
        self.arena.take_down(signal).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.arena.bring_up().await
    }

    /// Kills or stops a process of a kind, when one exists.
    async fn hit(&mut self, fault: Fault, target: Target) -> bool {
        let choice = self.rng.next();
        let deadline = Instant::now() + HUNT;
        let (seen, found) = loop {
            // The pid may be reused between the look-up and the signal.
            let now = Instant::now();
            let all = self.arena.processes(target);
            if let Some(at) = choice.checked_rem(all.len() as u64) {
                break (now, all.into_iter().nth(usize::try_from(at).unwrap_or(0)));
            }
            if Instant::now() > deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let Some(process) = found else { return false };
        let holds = matches!(
            fault,
            Fault::HoldMonitor
                | Fault::HoldCreate
                | Fault::HoldUnpack
                | Fault::HoldCni
                | Fault::HoldPlugin
        );
        let token = self
            .weather
            .since_when(seen, cause(target, &process, holds));
        let yard = &mut self.arena.daemon.yard;
        if !holds {
            yard.kill(process.pid, SIGKILL).await;
            self.weather.end(token, Duration::from_secs(2));
            return true;
        }
        yard.kill(process.pid, SIGSTOP).await;
        let seconds = match target {
            Target::Monitor => (2, 20),
            Target::Cni => (1, 4),
            // Some longer than a plugin's timeout.
            Target::Plugin => (1, 10),
            _ => (1, 6),
        };
        let after = Duration::from_secs(5);
        self.last(seconds, Relief::Continue(process.pid), token, after);
        true
    }

    /// Fills a file system of the daemon completely.
    fn fill(&mut self, name: &str) -> bool {
        let path = self.arena.seen(name);
        if path.exists() {
            return false;
        }
        let token = self.weather.begin(Cause::Scarce);
        let filled = fs::File::create(&path).is_ok_and(|file| {
            let mut at = 0;
            // Smaller and smaller pieces, until none fits.
            for size in [64_u64 << 20, 1 << 20, 64 << 10, 4096] {
                while rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), at, size).is_ok()
                {
                    at += size;
                }
            }
            at > 0
        });
        let after = Duration::from_secs(2);
        self.last((2, 6), Relief::Remove(name.into()), token, after);
        filled
    }

    /// Truncates the record of an object that a client knows.
    async fn tear(&mut self) -> Result<bool, String> {
        let choice = self.rng.next();
        self.arena.take_down(SIGKILL).await;
        let mut records: Vec<_> = ["root/pods", "root/containers"]
            .iter()
            .flat_map(|dir| self.arena.records(dir))
            .filter(|record| self.weather.was_notified(&record.id))
            .collect();
        records.sort_by(|a, b| a.path.cmp(&b.path));
        let torn = choice
            .checked_rem(records.len() as u64)
            .and_then(|n| records.into_iter().nth(usize::try_from(n).unwrap_or(0)));
        if let Some(record) = torn {
            let (id, pod) = (record.id.clone(), record.pod.clone());
            let token = self.weather.begin(Cause::Torn { id, pod });
            fs::OpenOptions::new()
                .write(true)
                .open(self.arena.seen(&record.path))
                .and_then(|file| file.set_len(record.content.len() as u64 / 2))
                .map_err(|e| format!("tear {}: {e}", record.path.display()))?;
            let after = Duration::from_secs(5);
            self.last((3, 8), Relief::Mend(record), token, after);
            self.arena.bring_up().await?;
            return Ok(true);
        }
        self.arena.bring_up().await?;
        Ok(false)
    }

    /// Leaves the daemon almost no descriptors.
    async fn starve(&mut self) -> bool {
        let pid = self.arena.daemon.pid();
        let open = self.arena.descriptors() as u64;
        let limits = fs::read_to_string(self.arena.proc().join("limits")).unwrap_or_default();
        let soft = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let Some(soft) = soft.filter(|soft| open > 0 && open + 8 < *soft) else {
            return false;
        };
        let token = self.weather.begin(Cause::Scarce);
        let spare = self.rng.below(8);
        self.limit(pid, open + spare).await;
        let after = Duration::from_secs(2);
        self.last((2, 6), Relief::Descriptors(pid, soft), token, after);
        true
    }

    async fn limit(&mut self, pid: i32, files: u64) {
        let (pid, files) = (format!("--pid={pid}"), format!("--nofile={files}:"));
        // The daemon may have ended meanwhile.
        let _ = self.arena.inside(&["prlimit", &pid, &files]).await;
    }
}

fn cause(target: Target, process: &Process, holds: bool) -> Cause {
    match target {
        Target::Monitor => {
            let id = process.keeps().unwrap_or_default().to_owned();
            if holds {
                Cause::MonitorHeld(id)
            } else {
                Cause::MonitorKilled(id)
            }
        }
        Target::Create => Cause::Create,
        Target::Unpack => Cause::Unpack,
        Target::Cni => Cause::Cni,
        Target::Plugin => Cause::Plugin,
    }
}
