//! Requests of clients, and the phases in which they are accepted.

use std::os::fd::{AsFd, OwnedFd};

use cairn_monitor::sys;
use cairn_monitor::wire::{Event, ExecRequest, Phase, Request, Streams};

use crate::create::Creation;
use crate::exec::Exec;
use crate::hooking::After;
use crate::peer::Asker;
use crate::purge;
use crate::server::Server;

/// Limit of concurrent execs.
const EXECS: usize = 512;

/// An answer with its descriptors; `None` if it is sent later.
type Answer = Result<Option<(Event, Vec<OwnedFd>)>, String>;

impl Server {
    pub(crate) fn request(&mut self, asker: Asker, request: Request) {
        let done = |()| Some((Event::Done, Vec::new()));
        let answer: Answer = match request {
            Request::Create => self.on_create(asker).map(|()| None),
            Request::Start => self.on_start(asker).map(|()| None),
            Request::Delete => self.on_delete(asker).map(|()| None),
            Request::Exec(exec) => self.on_exec(asker, *exec).map(|()| None),
            Request::Attach {
                stdin,
                stdout,
                stderr,
            } => {
                let asked = Streams {
                    stdin,
                    stdout,
                    stderr,
                    master: false,
                };
                self.must_be(matches!(self.phase, Phase::Created | Phase::Running))
                    .and_then(|()| self.streams.attach(asker.0, asked, &self.launch))
                    .map(Some)
            }
            Request::Kill { signal, all } => self.kill(signal, all).map(done),
            Request::ExecKill { session } => self.kill_exec(session).map(done),
            Request::Resize { columns, rows } => {
                let resized = self.streams.resize(columns, rows, &self.launch);
                resized.map(done)
            }
            Request::Detach { attach_id } => {
                self.streams.detach(|a| a.id == attach_id, &self.launch);
                Ok(done(()))
            }
            Request::ReopenLog => {
                let reopened = self.streams.output.reopen();
                reopened.map(done).map_err(|e| e.to_string())
            }
        };
        match answer {
            Ok(None) => {}
            Ok(Some((event, fds))) => self.clients.send(asker, event, fds),
            Err(text) => self.clients.fail(asker, text),
        }
    }

    /// Fails with the phase of the container if it is the wrong one.
    fn must_be(&self, is_right: bool) -> Result<(), String> {
        let wrong = || format!("the container is {:?}", self.phase);
        is_right.then_some(()).ok_or_else(wrong)
    }

    fn kill_exec(&self, session: u32) -> Result<(), String> {
        let exec = self.execs.iter().find(|e| e.session == session);
        let exec = exec.ok_or("the exec has ended")?;
        exec.kill().map_err(|e| e.to_string())
    }

    fn on_create(&mut self, asker: Asker) -> Result<(), String> {
        if self.phase != Phase::Empty {
            return Err("the container already exists".to_owned());
        }
        let mounts = self.mounts.take();
        let mounts = mounts.ok_or("an earlier attempt to create it failed")?;
        let output = &mut self.streams.output;
        let spawned = Creation::spawn(&self.launch, &self.cgroups, output, mounts);
        let (creation, stdin) = spawned.map_err(|e| format!("spawn cairn-create: {e}"))?;
        self.creation = Some(creation);
        self.streams.stdin = stdin;
        self.waits = Some(asker);
        self.phase = Phase::Creating;
        Ok(())
    }

    fn on_start(&mut self, asker: Asker) -> Result<(), String> {
        self.must_be(self.phase == Phase::Created)?;
        self.start().map_err(|e| format!("wake init: {e}"))?;
        self.waits = Some(asker);
        Ok(())
    }

    fn on_exec(&mut self, (peer, request): Asker, exec: ExecRequest) -> Result<(), String> {
        self.must_be(self.phase == Phase::Running)?;
        if self.execs.len() >= EXECS {
            return Err(format!("limit of {EXECS} running execs reached"));
        }
        let target = self.target.as_ref().ok_or("the container has no init")?;
        let session = self.next_session;
        self.next_session += 1;
        let exec = Exec::start(session, peer, request, exec, target, &self.cgroups)?;
        self.execs.push(exec);
        Ok(())
    }

    fn on_delete(&mut self, asker: Asker) -> Result<(), String> {
        self.must_be(self.phase == Phase::Exited)?;
        self.hooks_then(asker, After::Delete);
        Ok(())
    }

    fn kill(&mut self, signal: i32, all: bool) -> Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        if all && signal == libc::SIGKILL {
            return purge::kill_everything(&self.cgroups).map_err(text);
        }
        if all {
            for pid in self.cgroups.processes() {
                let _ = sys::kill(pid, signal); // it may have exited
            }
            return Ok(());
        }
        self.must_be(matches!(self.phase, Phase::Created | Phase::Running))?;
        let target = self.target.as_ref().ok_or("the container has no init")?;
        sys::pidfd_signal(target.pidfd.as_fd(), signal).map_err(text)
    }

    pub(crate) fn delete(&mut self) -> Result<(), String> {
        purge::purge(&self.cgroups).map_err(|e| e.to_string())?;
        self.over = true;
        Ok(())
    }
}
