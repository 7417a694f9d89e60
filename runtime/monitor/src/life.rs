//! The container's life: children reaped, phases changed, the end recorded.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use cairn_monitor::log::Stream;
use cairn_monitor::record::{EXIT, Exit, PID, Pid};
use cairn_monitor::stat::start_time;
use cairn_monitor::sys::{self, Status};
use cairn_monitor::wire::{Event, Phase};

use crate::create::{has_hooks, notify, run_hooks};
use crate::output;
use crate::server::{After, Asker, DRAIN, Server};
use crate::session::Outcome;
use crate::target::Target;

impl Server {
    pub(crate) fn reap(&mut self) {
        let mut signals = [0; 512];
        while sys::read(self.signals.as_fd(), &mut signals).is_ok_and(|n| n > 0) {}
        while let Some((pid, status)) = sys::reap() {
            self.buried(pid, status);
        }
        self.leftovers.retain(|group| !group.remove());
    }

    fn buried(&mut self, pid: i32, status: Status) {
        if let Some((_, asker, after)) = self.hooking.take_if(|(helper, _, _)| *helper == pid) {
            return self.hooks_are_done(asker, after);
        }
        if self.target.as_ref().is_some_and(|t| t.pid == pid) {
            return self.init_ended(status);
        }
        if self.creation.as_ref().is_some_and(|c| c.helper == pid) && self.phase == Phase::Creating
        {
            return self.check_creation(Some(status));
        }
        for exec in &mut self.execs {
            if exec.concerns(pid) {
                exec.buried(pid, status);
                let session = exec.session;
                return self.check_exec(session);
            }
        }
        if self.phase == Phase::Creating {
            self.strays.push((pid, status));
        }
    }

    /// Reads what the helper said. `helper`: it has ended, nothing more will come.
    pub(crate) fn check_creation(&mut self, helper: Option<Status>) {
        let Some(creation) = &mut self.creation else {
            return;
        };
        creation.read_report();
        if self.phase != Phase::Creating {
            return;
        }
        let result = match (creation.pid, helper) {
            // Others of its PID namespace may have had a say in it.
            (Some(pid), _) if !sys::is_child(pid) && self.strays.iter().all(|s| s.0 != pid) => {
                Err(format!("take over init: {pid} is no child of the monitor"))
            }
            (Some(pid), _) => creation
                .take_terminal()
                .and_then(|terminal| creation.schedule(pid).map(|()| terminal))
                .and_then(|terminal| self.adopt(pid, terminal))
                .map_err(|e| format!("take over init: {e}")),
            (None, Some(status)) => {
                Err(creation.why(&format!("cairn-create ended with code {}", status.code)))
            }
            (None, None) => return,
        };
        let Some(asker) = self.waits_for_create.take() else {
            return;
        };
        match result {
            Ok(pid) => {
                self.phase = Phase::Created;
                let start_time = self.start_time;
                self.tell(asker, Event::Created { pid, start_time }, Vec::new());
                // It may have died already.
                if let Some(at) = self.strays.iter().position(|(p, _)| *p == pid) {
                    let (_, status) = self.strays.remove(at);
                    self.init_ended(status);
                }
                self.strays.clear();
            }
            Err(text) => {
                self.phase = Phase::Empty;
                self.creation = None;
                self.fail(asker, text);
            }
        }
    }

    fn adopt(&mut self, pid: i32, terminal: Option<OwnedFd>) -> io::Result<i32> {
        let target = Target::new(pid)?;
        self.start_time = start_time(pid)?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?
            .trim()
            .to_owned();
        let monitor = std::process::id() as i32;
        let text = Pid {
            pid,
            start_time: self.start_time,
            boot_id,
            monitor,
        }
        .to_text();
        const TEMPORARY: &str = "pid.tmp";
        fs::write(TEMPORARY, text)?;
        fs::rename(TEMPORARY, PID)?;
        if let Some(master) = terminal {
            self.output
                .add(Stream::Stdout, sys::dup_above(master.as_fd(), 3)?, true)?;
            self.stdin = Some(master);
        }
        self.target = Some(target);
        Ok(pid)
    }

    pub(crate) fn start(&mut self) -> io::Result<()> {
        notify(&self.launch.id)?;
        self.started = true;
        self.phase = Phase::Running;
        Ok(())
    }

    pub(crate) fn check_start(&mut self) {
        let Some(creation) = &mut self.creation else {
            return;
        };
        let Some(result) = creation.started() else {
            return;
        };
        if self.phase == Phase::Creating {
            // Init is dead; the helper is about to say why.
            return;
        }
        self.creation = None;
        if result.is_err() {
            self.started = false;
        }
        let Some(asker) = self.waits_for_start.take() else {
            return;
        };
        match result {
            Ok(()) => self.hooks_then(asker, After::Start),
            Err(text) => self.fail(asker, text),
        }
    }

    /// Runs the OCI hooks that belong before this, if the container has any.
    pub(crate) fn hooks_then(&mut self, asker: Asker, after: After) {
        if self.hooking.is_some() {
            return self.fail(asker, "OCI hooks are running");
        }
        let point = match after {
            After::Start => "poststart",
            After::Delete => "poststop",
        };
        let pid = self.target.as_ref().map_or(0, |t| t.pid);
        if has_hooks(point)
            && !self.stopped
            && let Ok(helper) = run_hooks(&self.launch, point, pid)
        {
            self.hooking = Some((helper, asker, after));
            return;
        }
        self.hooks_are_done(asker, after);
    }

    fn hooks_are_done(&mut self, asker: Asker, after: After) {
        let result = match after {
            After::Start => Ok(()),
            After::Delete => {
                self.stopped = true;
                self.delete()
            }
        };
        self.answer(asker, result);
    }

    pub(crate) fn check_exec(&mut self, session: u32) {
        let Some(at) = self.execs.iter().position(|e| e.session == session) else {
            return;
        };
        let exec = &mut self.execs[at];
        let asker = (exec.peer, exec.request);
        match exec.outcome() {
            Outcome::Pending => {}
            Outcome::Started(streams, fds) => {
                let pid = exec.pid();
                let started = Event::ExecStarted {
                    session,
                    pid,
                    streams,
                };
                self.tell(asker, started, fds);
            }
            Outcome::Failed(text) => self.fail(asker, text),
        }
        let exec = &self.execs[at];
        // Told only when nothing of it is left: its joiner, which is in the container's cgroups too, may be the last to go.
        if let (Some(Status { code, signal }), None, false) =
            (exec.exit, exec.status_fd(), exec.has_joiner())
        {
            let (announced, timed_out) = (exec.announced, exec.timed_out);
            self.leftovers
                .extend(self.execs.remove(at).into_group().filter(|g| !g.remove()));
            if announced {
                let exited = Event::ExecExited {
                    session,
                    code,
                    signal,
                    timed_out,
                };
                self.tell(asker, exited, Vec::new());
            }
        }
    }

    /// Init is dead: so is, a moment later, everything in its cgroup (CRI-258: a container in a shared pid namespace
    /// leaves nothing behind).
    fn init_ended(&mut self, status: Status) {
        let finished_at = output::now();
        self.check_start();
        // Delete tries again with any process that is left.
        let _ = self.cgroups.kill_all();
        self.ended = Some((status, finished_at, Instant::now() + DRAIN));
        self.stdin = None;
    }

    pub(crate) fn conclude(&mut self, status: Status, finished_at: u64) {
        let log_lost = self.output.close();
        let exit = Exit {
            code: status.code,
            signal: status.signal,
            finished_at,
            oom_killed: status.signal == libc::SIGKILL && self.cgroups.oom_kills() > 0,
            started: self.started,
            log_lost,
        };
        // A full or broken disk must not hide the exit from the daemon that is connected.
        if let Err(e) = write_exit(&exit) {
            // The reader of stderr may have ended.
            let _ = writeln!(io::stderr(), "cairn-monitor: write the exit file: {e}");
        }
        self.exit = Some(exit);
        self.phase = Phase::Exited;
        let ids: Vec<u64> = self.peers.iter().map(|p| p.id).collect();
        for id in ids {
            self.tell((id, 0), Event::Exited(exit), Vec::new());
        }
    }
}

/// Atomic: temporary file, fdatasync, rename.
fn write_exit(exit: &Exit) -> io::Result<()> {
    const TEMPORARY: &str = "exit.tmp";
    let mut file = sys::create_private(Path::new(TEMPORARY))?;
    file.write_all(exit.to_text().as_bytes())?;
    file.sync_data()?;
    fs::rename(TEMPORARY, EXIT)
}
