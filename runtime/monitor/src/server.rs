//! The poll loop: receives events and sends answers; `life.rs` handles the container's events.
//!
//! No call blocks: slow events (the helper, execve, dying processes) are awaited in `poll`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use cairn_monitor::cgroup::{self, Cgroups};
use cairn_monitor::codec::VERSION;
use cairn_monitor::record::{Exit, Launch};
use cairn_monitor::sys::{self, Status};
use cairn_monitor::wire::{Event, Phase};

use crate::create::Creation;
use crate::exec::Exec;
use crate::hooking::Hooking;
use crate::output::{CHUNK, Output};
use crate::pace::Pace;
use crate::peer::{Asker, Clients};
use crate::purge::purge;
use crate::streams::{Attached, Streams};
use crate::target::Target;

/// Limit for draining output after init has exited and its cgroup was killed.
pub(crate) const DRAIN: Duration = Duration::from_secs(2);
/// The monitor. It alone owns its fields; requests (`request.rs`) change them through its methods.
pub(crate) struct Server {
    pub(crate) launch: Launch,
    pub(crate) cgroups: Cgroups,
    pub(crate) phase: Phase,
    pub(crate) clients: Clients,
    pub(crate) streams: Streams,
    pace: Pace,
    pub(crate) execs: Vec<Exec>,
    pub(crate) next_session: u32,
    /// Groups of ended execs with running background children.
    pub(crate) leftovers: Vec<cgroup::Session>,
    /// The mount namespace to build the container in, until `create` takes it.
    pub(crate) mounts: Option<OwnedFd>,
    pub(crate) creation: Option<Creation>,
    /// The request to create the container, or to start it.
    pub(crate) waits: Option<Asker>,
    pub(crate) target: Option<Target>,
    /// Running OCI hooks.
    pub(crate) hooking: Option<Hooking>,
    /// The poststop hooks have run.
    pub(crate) stopped: bool,
    /// Deleted: the monitor ends when the answer is sent.
    pub(crate) over: bool,
    pub(crate) started: bool,
    pub(crate) signals: OwnedFd,
    /// Children reaped before their role was known: init can die before its pid is reported.
    pub(crate) strays: Vec<i32>,
    /// Init's status, its end time, and the deadline for draining its output.
    pub(crate) ended: Option<(Status, u64, Instant)>,
    pub(crate) exit: Option<Exit>,
}

#[derive(Clone, Copy)]
enum Token {
    Signals,
    Listener,
    Client(u64),
    Report,
    Status,
    Hooked,
    Read(RawFd),
    Write(RawFd),
    Exec(u32),
}

impl Server {
    pub(crate) fn new(launch: Launch, daemon: OwnedFd, mounts: OwnedFd) -> io::Result<Server> {
        // First: it is the likeliest to fail, and leaves nothing behind.
        let output = Output::new(launch.log_path.as_deref(), launch.max_log_line)?;
        let signals = sys::child_signal_fd()?;
        let mut server = Server {
            cgroups: Cgroups::new(&launch.cgroups),
            launch,
            phase: Phase::Empty,
            clients: Clients::listen()?,
            streams: Streams::new(output),
            pace: Pace::new(),
            execs: Vec::new(),
            next_session: 1,
            leftovers: Vec::new(),
            mounts: Some(mounts),
            creation: None,
            waits: None,
            target: None,
            hooking: None,
            stopped: false,
            over: false,
            started: false,
            signals,
            strays: Vec::new(),
            ended: None,
            exit: None,
        };
        let hello = server.hello();
        server.clients.admit(daemon, hello)?;
        Ok(server)
    }

    /// Runs until the container is deleted, or abandoned before its start.
    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            if self.over && !self.clients.has_output() {
                return Ok(());
            }
            if self.clients.is_empty() && !self.started && self.exit.is_none() {
                // Answers in flight do not matter: the daemon rolls back by its own record.
                return purge(&self.cgroups);
            }
            let (mut fds, tokens) = self.interests();
            sys::poll(&mut fds, self.timeout())?;
            for (fd, token) in fds.iter().zip(tokens).filter(|(fd, _)| fd.revents != 0) {
                self.handle(token, fd.revents);
            }
            self.tick();
        }
    }

    fn interests(&self) -> (Vec<libc::pollfd>, Vec<Token>) {
        let mut fds = Vec::with_capacity(16);
        let mut tokens = Vec::with_capacity(16);
        let mut add = |fd: RawFd, events: i16, token: Token| {
            fds.push(libc::pollfd {
                fd,
                events,
                revents: 0,
            });
            tokens.push(token);
        };
        // Output before SIGCHLD, so that output of a process is read before its end is known.
        if self.pace.paused_until().is_none() {
            for fd in self.streams.output.readable() {
                add(fd, libc::POLLIN, Token::Read(fd));
            }
        }
        for fd in self.streams.output.writable() {
            add(fd, libc::POLLOUT, Token::Write(fd));
        }
        if let Some(creation) = &self.creation {
            let report = creation.report_fd().into_iter();
            report.for_each(|fd| add(fd, libc::POLLIN, Token::Report));
            let status = creation.status_fd().into_iter();
            status.for_each(|fd| add(fd, libc::POLLIN, Token::Status));
        }
        if let Some(hooking) = &self.hooking {
            add(hooking.report_fd(), libc::POLLIN, Token::Hooked);
        }
        for exec in &self.execs {
            let token = Token::Exec(exec.session);
            let fds = [exec.status_fd(), exec.birth_fd()];
            fds.into_iter()
                .flatten()
                .for_each(|fd| add(fd, libc::POLLIN, token));
        }
        add(self.signals.as_raw_fd(), libc::POLLIN, Token::Signals);
        for (fd, client, has_output) in self.clients.connections() {
            let output = if has_output { libc::POLLOUT } else { 0 };
            add(fd, libc::POLLIN | output, Token::Client(client));
        }
        if let Some(fd) = self.clients.listener_fd() {
            add(fd, libc::POLLIN, Token::Listener);
        }
        (fds, tokens)
    }

    fn timeout(&self) -> i32 {
        let execs = self.execs.iter().filter_map(|e| e.deadline);
        let drain = self
            .ended
            .filter(|_| self.exit.is_none())
            .map(|(_, _, until)| until);
        match execs
            .chain(drain)
            .chain(self.streams.output.deadline())
            .chain(self.pace.paused_until())
            .min()
        {
            None => -1,
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                // Rounded up, so that the deadline has passed when poll returns.
                i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX)
            }
        }
    }

    fn handle(&mut self, token: Token, events: i16) {
        match token {
            Token::Read(fd) => {
                if self.pace.paused_until().is_none() {
                    let most = self.pace.chunk(CHUNK);
                    self.streams.output.read(fd, self.ended.is_some(), most);
                }
                return self.pace.charge(&self.cgroups);
            }
            Token::Write(fd) => {
                self.streams.output.write(fd);
                return self.pace.charge(&self.cgroups);
            }
            Token::Report => self.check_creation(None),
            Token::Status => self.check_start(),
            Token::Hooked => self.check_hooks(None),
            Token::Exec(session) => self.check_exec(session),
            Token::Signals => self.reap(),
            Token::Listener => {
                let hello = self.hello();
                self.clients.accept(hello);
            }
            Token::Client(id) => {
                for (number, request) in self.clients.serve(id, events) {
                    match request {
                        Ok(request) => self.request((id, number), request),
                        Err(text) => self.clients.fail((id, number), text),
                    }
                }
            }
        }
        self.pace.skip();
    }

    fn hello(&self) -> Event {
        let target = self.target.as_ref();
        let (pid, start_time) = target.map_or((0, 0), |t| (t.pid, t.start_time));
        Event::Hello {
            version: VERSION,
            phase: self.phase,
            pid,
            start_time,
            exit: self.exit,
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let is_lost = |session: &Attached| !self.clients.is_connected(session.peer);
        self.streams.detach(is_lost, &self.launch);
        self.execs.iter_mut().for_each(|e| e.tick(now));
        self.streams.output.tick();
        if let Some((status, finished_at, until)) = self.ended
            && self.exit.is_none()
            && (self.streams.output.ended() || until <= now)
        {
            self.record_exit(status, finished_at);
        }
    }
}
