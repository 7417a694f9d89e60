//! Requests of clients, and the phases in which they are accepted.

use std::os::fd::{AsFd, OwnedFd};

use cairn_monitor::log::Stream;
use cairn_monitor::sys;
use cairn_monitor::wire::{Event, ExecRequest, Phase, Request, Streams};

use crate::create::Creation;
use crate::server::{After, Asker, Server};
use crate::session::Exec;

/// Limit of concurrent execs.
const EXECS: usize = 512;
/// Limit of concurrent attach sessions.
const ATTACHED: usize = 64;

impl Server {
    pub(crate) fn request(&mut self, asker: Asker, request: Request) {
        let done = match request {
            Request::Create => return self.on_create(asker),
            Request::Start => return self.on_start(asker),
            Request::Delete => return self.on_delete(asker),
            Request::Exec(exec) => return self.on_exec(asker, *exec),
            Request::Attach {
                stdin,
                stdout,
                stderr,
            } => match self.on_attach(asker.0, stdin, stdout, stderr) {
                Ok((event, fds)) => return self.send_event(asker, event, fds),
                Err(text) => return self.fail(asker, text),
            },
            Request::Kill { signal, all } => self.kill(signal, all),
            Request::ExecKill { session } => self.kill_exec(session),
            Request::Resize { columns, rows } => self.resize(columns, rows),
            Request::Detach { attach_id } => {
                self.detach(attach_id);
                Ok(())
            }
            Request::ReopenLog => self.output.reopen().map_err(|e| e.to_string()),
        };
        self.answer(asker, done);
    }

    fn kill_exec(&self, session: u32) -> Result<(), String> {
        let exec = self.execs.iter().find(|e| e.session == session);
        let exec = exec.ok_or("the exec has ended")?;
        exec.kill().map_err(|e| e.to_string())
    }

    fn resize(&self, columns: u16, rows: u16) -> Result<(), String> {
        let master = self.stdin.as_ref().filter(|_| self.launch.tty);
        let master = master.ok_or("the container has no terminal")?;
        sys::set_window(master.as_fd(), columns, rows).map_err(|e| e.to_string())
    }

    fn on_create(&mut self, asker: Asker) {
        if self.phase != Phase::Empty || self.waits_for_create.is_some() {
            return self.fail(asker, "the container already exists");
        }
        let Some(mounts) = self.mounts.take() else {
            return self.fail(asker, "an earlier attempt to create it failed");
        };
        match Creation::spawn(&self.launch, &self.cgroups, &mut self.output, mounts) {
            Ok((creation, stdin)) => {
                self.creation = Some(creation);
                self.stdin = stdin;
                self.waits_for_create = Some(asker);
                self.phase = Phase::Creating;
            }
            Err(e) => self.fail(asker, format!("spawn cairn-create: {e}")),
        }
    }

    fn on_start(&mut self, asker: Asker) {
        if self.phase != Phase::Created || self.waits_for_start.is_some() {
            return self.fail(asker, format!("the container is {:?}", self.phase));
        }
        match self.start() {
            Ok(()) => self.waits_for_start = Some(asker),
            Err(e) => self.fail(asker, format!("wake init: {e}")),
        }
    }

    fn on_exec(&mut self, asker: Asker, exec: ExecRequest) {
        let Some(target) = self
            .target
            .as_ref()
            .filter(|_| self.phase == Phase::Running)
        else {
            return self.fail(asker, format!("the container is {:?}", self.phase));
        };
        if self.execs.len() >= EXECS {
            return self.fail(asker, format!("limit of {EXECS} running execs reached"));
        }
        let session = self.next_number;
        self.next_number += 1;
        let (peer, request) = asker;
        match Exec::start(session, peer, request, exec, target, &self.cgroups) {
            Ok(exec) => self.execs.push(exec),
            Err(text) => self.fail(asker, text),
        }
    }

    fn on_attach(
        &mut self,
        peer: u64,
        stdin: bool,
        stdout: bool,
        stderr: bool,
    ) -> Result<(Event, Vec<OwnedFd>), String> {
        if !matches!(self.phase, Phase::Created | Phase::Running) {
            return Err(format!("the container is {:?}", self.phase));
        }
        if self.attached.len() >= ATTACHED {
            return Err(format!("limit of {ATTACHED} attached sessions reached"));
        }
        let attach_id = self.next_number;
        self.next_number += 1;
        let tty = self.launch.tty;
        // A terminal's master is both directions; the client only writes to this copy.
        let stdin = self.stdin.as_ref().filter(|_| stdin && self.launch.stdin);
        let text = |e: std::io::Error| e.to_string();
        let stdin = stdin
            .map(|fd| sys::dup_above(fd.as_fd(), 3))
            .transpose()
            .map_err(text)?;
        let streams = Streams {
            stdin: stdin.is_some() && !tty,
            stdout,
            stderr: stderr && !tty,
            master: stdin.is_some() && tty,
        };
        let mut fds = Vec::new();
        let (pipe, master) = if tty { (None, stdin) } else { (stdin, None) };
        fds.extend(pipe);
        if streams.stdout {
            fds.push(
                self.output
                    .attach(attach_id, Stream::Stdout)
                    .map_err(text)?,
            );
        }
        if streams.stderr {
            fds.push(
                self.output
                    .attach(attach_id, Stream::Stderr)
                    .map_err(text)?,
            );
        }
        fds.extend(master);
        self.attached
            .push((attach_id, peer, streams.stdin || streams.master));
        Ok((Event::Attached { attach_id, streams }, fds))
    }

    /// With `stdin_once` the first session that had stdin closes the container's (CRI-255).
    pub(crate) fn detach(&mut self, attach_id: u32) {
        self.output.detach(attach_id);
        let Some(at) = self.attached.iter().position(|a| a.0 == attach_id) else {
            return;
        };
        let (_, _, had_stdin) = self.attached.remove(at);
        if had_stdin && self.launch.stdin_once && !self.launch.tty {
            self.stdin = None;
        }
    }

    fn kill(&mut self, signal: i32, all: bool) -> Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        if all && signal == libc::SIGKILL {
            return self.cgroups.kill_all().map_err(text);
        }
        if all {
            for pid in self.cgroups.processes() {
                let _ = sys::kill(pid, signal); // it may have exited
            }
            return Ok(());
        }
        match (&self.target, self.phase) {
            (Some(target), Phase::Created | Phase::Running) => {
                sys::pidfd_signal(target.pidfd.as_fd(), signal).map_err(text)
            }
            _ => Err(format!("the container is {:?}", self.phase)),
        }
    }

    fn on_delete(&mut self, asker: Asker) {
        if self.phase != Phase::Exited {
            return self.fail(asker, format!("the container is {:?}", self.phase));
        }
        self.hooks_then(asker, After::Delete);
    }

    pub(crate) fn delete(&mut self) -> Result<(), String> {
        crate::purge::purge(&self.cgroups).map_err(|e| e.to_string())?;
        self.over = true;
        Ok(())
    }
}
