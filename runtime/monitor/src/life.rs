//! The container's life: reaps children, changes the phase, records the exit.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use cairn_monitor::log::Stream;
use cairn_monitor::record::{EXIT, Exit, PID, Pid};
use cairn_monitor::stat;
use cairn_monitor::sys::{self, Reaped, Status};
use cairn_monitor::wire::{Event, Phase};

use crate::create::notify;
use crate::exec::Outcome;
use crate::hooking::{After, Hooking};
use crate::output;
use crate::peer::Asker;
use crate::purge;
use crate::server::{DRAIN, Server};
use crate::target::Target;

/// Limit of released children per turn: a container can stop its processes again and again.
const RELEASED: usize = 64;

impl Server {
    pub(crate) fn reap(&mut self) {
        let mut signals = [0; 512];
        while sys::read(self.signals.as_fd(), &mut signals).is_ok_and(|n| n > 0) {}
        let mut released = 0;
        while let Some(reaped) = sys::reap() {
            match reaped {
                Reaped::Ended(pid, status) => self.child_ended(pid, status),
                Reaped::Released => released += 1,
            }
            if released == RELEASED {
                // Continues after the other events: the signals have been read.
                let _ = sys::kill(std::process::id() as i32, libc::SIGCHLD); // cannot fail
                break;
            }
        }
        self.leftovers.retain(|group| !group.remove());
    }

    fn child_ended(&mut self, pid: i32, status: Status) {
        self.check_hooks(Some(pid));
        if self.target.as_ref().is_some_and(|t| t.pid == pid) {
            return self.init_ended(status);
        }
        if self.creation.as_ref().is_some_and(|c| c.helper == pid) && self.phase == Phase::Creating
        {
            return self.check_creation(Some(status));
        }
        for exec in &mut self.execs {
            if exec.concerns(pid) {
                exec.child_ended(pid, status);
                let session = exec.session;
                return self.check_exec(session);
            }
        }
        if self.phase == Phase::Creating {
            self.strays.push(pid);
        }
    }

    /// Reads the helper's reports. `helper` is its exit status: no further reports follow.
    pub(crate) fn check_creation(&mut self, helper: Option<Status>) {
        let Some(creation) = &mut self.creation else {
            return;
        };
        creation.read_report();
        if self.phase != Phase::Creating {
            return;
        }
        let result = match (creation.pid, helper) {
            (Some(pid), _) if self.strays.contains(&pid) => {
                Err(creation.why("init ended before the monitor took it over"))
            }
            // Other processes of its PID namespace may have forged the pid.
            (Some(pid), _) if !sys::is_child(pid) => Err(format!(
                "take over init: process {pid} is not a child of the monitor"
            )),
            (Some(pid), _) => creation
                .take_terminal()
                .and_then(|terminal| creation.schedule(pid).map(|()| terminal))
                .and_then(|terminal| self.adopt(pid, terminal))
                .map_err(|e| format!("take over init: {e}")),
            (None, Some(status)) => Err(creation.why(&match status.signal {
                0 => format!(
                    "the helper cairn-create failed with exit code {}",
                    status.code
                ),
                signal => format!("the helper cairn-create was killed by signal {signal}"),
            })),
            (None, None) => return,
        };
        let Some(asker) = self.waits.take() else {
            return;
        };
        match result {
            Ok(pid) => {
                self.phase = Phase::Created;
                let start_time = self.target.as_ref().map_or(0, |t| t.start_time);
                self.clients
                    .send(asker, Event::Created { pid, start_time }, Vec::new());
                self.strays.clear();
            }
            Err(text) => {
                self.phase = Phase::Empty;
                self.creation = None;
                self.clients.fail(asker, text);
            }
        }
    }

    fn adopt(&mut self, pid: i32, terminal: Option<OwnedFd>) -> io::Result<i32> {
        let target = Target::new(pid)?;
        let boot_id = stat::boot_id()?;
        let monitor = std::process::id() as i32;
        let text = Pid {
            pid,
            start_time: target.start_time,
            boot_id,
            monitor,
        }
        .to_text();
        const TEMPORARY: &str = "pid.tmp";
        fs::write(TEMPORARY, text)?;
        fs::rename(TEMPORARY, PID)?;
        if let Some(master) = terminal {
            let output = &mut self.streams.output;
            output.add(Stream::Stdout, sys::dup_above(master.as_fd(), 3)?, true)?;
            self.streams.stdin = Some(master);
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
            // Init is dead; the helper reports why.
            return;
        }
        self.creation = None;
        if result.is_err() {
            self.started = false;
        }
        let Some(asker) = self.waits.take() else {
            return;
        };
        match result {
            Ok(()) => self.hooks_then(asker, After::Start),
            Err(text) => self.clients.fail(asker, text),
        }
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
                self.clients.send(asker, started, fds);
                if !self.clients.is_connected(exec.peer) {
                    // Nobody knows it, or has its streams.
                    let _ = exec.kill(); // it may have exited
                }
            }
            Outcome::Failed(text) => self.clients.fail(asker, text),
        }
        let exec = &self.execs[at];
        // Reported last: the joiner, also in the container's cgroups, may end after the exec.
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
                self.clients.send(asker, exited, Vec::new());
            }
        }
    }

    /// Kills the rest of the cgroup (CRI-258: a shared pid namespace must be left clean).
    fn init_ended(&mut self, status: Status) {
        let finished_at = output::now();
        self.check_start();
        let _ = self.cgroups.kill_all(); // delete retries
        self.ended = Some((status, finished_at, Instant::now() + DRAIN));
        self.streams.stdin = None;
    }

    pub(crate) fn record_exit(&mut self, status: Status, finished_at: u64) {
        let log_lost = self.streams.output.close();
        let exit = Exit {
            code: status.code,
            signal: status.signal,
            finished_at,
            oom_killed: status.signal == libc::SIGKILL && self.cgroups.oom_kills() > 0,
            started: self.started,
            log_lost,
        };
        // A full or broken disk must not hide the exit from the connected daemon.
        if let Err(e) = write_exit(&exit) {
            let _ = writeln!(io::stderr(), "cairn-monitor: write the exit file: {e}");
        }
        self.exit = Some(exit);
        self.phase = Phase::Exited;
        self.clients.send_all(&Event::Exited(exit));
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

impl Server {
    /// Runs the OCI hooks of this point, if the container has any; then answers.
    pub(crate) fn hooks_then(&mut self, asker: Asker, after: After) {
        match &mut self.hooking {
            // Another daemon asks again.
            Some(hooking) if hooking.after == after => return hooking.askers.push(asker),
            // The container has ended before its poststart hooks.
            Some(_) => {
                let _ = purge::kill_everything(&self.cgroups); // the deletion tries again
                self.hooks_are_done();
            }
            None => {}
        }
        let pid = self.target.as_ref().map_or(0, |t| t.pid);
        if !self.stopped
            && after.has_hooks()
            && let Ok(hooking) = Hooking::start(&self.launch, asker, after, pid)
        {
            self.hooking = Some(hooking);
            return;
        }
        self.go_on(&[asker], after);
    }

    /// Goes on after the hooks, if they are done; `ended` is a child that has ended.
    pub(crate) fn check_hooks(&mut self, ended: Option<i32>) {
        let is_over = |hooking: &Hooking| ended == Some(hooking.helper) || hooking.is_done();
        if self.hooking.as_ref().is_some_and(is_over) {
            self.hooks_are_done();
        }
    }

    fn hooks_are_done(&mut self) {
        if let Some(hooking) = self.hooking.take() {
            self.go_on(&hooking.askers, hooking.after);
        }
    }

    fn go_on(&mut self, askers: &[Asker], after: After) {
        let result = match after {
            After::Start => Ok(()),
            After::Delete => {
                self.stopped = true;
                self.delete()
            }
        };
        for asker in askers {
            self.clients.answer(*asker, result.clone());
        }
    }
}
