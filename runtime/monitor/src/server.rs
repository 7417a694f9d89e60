//! The poll loop: what happened, and who is told (`life.rs` decides what it means).
//!
//! Everything here returns quickly; what takes time (the helper, execve, processes dying) is waited for in `poll`.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use cairn_monitor::cgroup::{self, Cgroups};
use cairn_monitor::cgroup_tree::gone;
use cairn_monitor::codec::VERSION;
use cairn_monitor::record::{CTL, Exit, Launch};
use cairn_monitor::sys::{self, Status};
use cairn_monitor::wire::{Event, Phase};

use crate::create::Creation;
use crate::output::Output;
use crate::peer::Peer;
use crate::purge::purge;
use crate::session::Exec;
use crate::target::Target;

/// How long output may be drained after init has exited and everything in its cgroup was killed.
pub(crate) const DRAIN: Duration = Duration::from_secs(2);
/// Connections at a time.
const PEERS: usize = 16;

/// Who waits for an answer: connection and request.
pub(crate) type Asker = (u64, u32);

/// The monitor. Fields are owned by it alone; requests (`request.rs`) change them through its methods.
pub(crate) struct Server {
    pub(crate) launch: Launch,
    pub(crate) cgroups: Cgroups,
    pub(crate) phase: Phase,
    pub(crate) output: Output,
    pub(crate) execs: Vec<Exec>,
    pub(crate) next_number: u32,
    /// Where the container is built, until it is asked for.
    pub(crate) mounts: Option<OwnedFd>,
    pub(crate) creation: Option<Creation>,
    pub(crate) target: Option<Target>,
    /// The write end of the container's stdin, or its terminal's master.
    pub(crate) stdin: Option<OwnedFd>,
    /// Attach sessions: id, connection, with stdin.
    pub(crate) attached: Vec<(u32, u64, bool)>,
    pub(crate) waits_for_create: Option<Asker>,
    pub(crate) waits_for_start: Option<Asker>,
    /// OCI hooks at work: the helper's pid, and who waits for their end and what follows it.
    pub(crate) hooking: Option<(i32, Asker, After)>,
    /// The poststop hooks have run.
    pub(crate) stopped: bool,
    /// Deleted: end as soon as the answer is sent.
    pub(crate) over: bool,
    pub(crate) start_time: u64,
    pub(crate) started: bool,
    pub(crate) peers: Vec<Peer>,
    pub(crate) next_peer: u64,
    pub(crate) listener: UnixListener,
    pub(crate) signals: OwnedFd,
    /// Children reaped before we knew whose they are: init can die before its pid is reported.
    pub(crate) strays: Vec<(i32, Status)>,
    /// Init's end, and until when its output is drained.
    pub(crate) ended: Option<(Status, u64, Instant)>,
    pub(crate) exit: Option<Exit>,
    /// Groups of ended execs in which background children still run.
    pub(crate) leftovers: Vec<cgroup::Session>,
}

/// What follows OCI hooks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum After {
    Start,
    Delete,
}

#[derive(Clone, Copy)]
enum Token {
    Signals,
    Listener,
    Peer(u64),
    Report,
    Status,
    Read(RawFd),
    Write(RawFd),
    Exec(u32),
}

impl Server {
    pub(crate) fn new(launch: Launch, daemon: OwnedFd, mounts: OwnedFd) -> io::Result<Server> {
        // First: it fails most easily, and leaves nothing then.
        let output = Output::new(launch.log_path.as_deref(), launch.max_log_line)?;
        let signals = sys::child_signal_fd()?;
        gone(fs::remove_file(CTL))?;
        let listener = UnixListener::bind(CTL)?;
        listener.set_nonblocking(true)?;
        let mut server = Server {
            cgroups: Cgroups::new(&launch.cgroups),
            launch,
            phase: Phase::Empty,
            output,
            execs: Vec::new(),
            next_number: 1,
            mounts: Some(mounts),
            creation: None,
            target: None,
            stdin: None,
            attached: Vec::new(),
            waits_for_create: None,
            waits_for_start: None,
            hooking: None,
            stopped: false,
            over: false,
            start_time: 0,
            started: false,
            peers: Vec::new(),
            next_peer: 1,
            listener,
            signals,
            strays: Vec::new(),
            ended: None,
            exit: None,
            leftovers: Vec::new(),
        };
        server.admit(daemon)?;
        Ok(server)
    }

    /// Until deleted, or abandoned before the start.
    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            if self.over && self.peers.iter().all(|p| !p.has_output()) {
                return Ok(());
            }
            if self.peers.is_empty() && !self.started && self.exit.is_none() {
                // Also what the daemon asked for last and will not hear: it rolls back by the record it has.
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
        // Output before SIGCHLD: what a process wrote before its end is read before its end is known.
        for fd in self.output.readable() {
            add(fd, libc::POLLIN, Token::Read(fd));
        }
        for fd in self.output.writable() {
            add(fd, libc::POLLOUT, Token::Write(fd));
        }
        if let Some(creation) = &self.creation {
            let report = creation.report_fd().into_iter();
            report.for_each(|fd| add(fd, libc::POLLIN, Token::Report));
            let status = creation.status_fd().into_iter();
            status.for_each(|fd| add(fd, libc::POLLIN, Token::Status));
        }
        for exec in &self.execs {
            let token = Token::Exec(exec.session);
            let fds = [exec.status_fd(), exec.birth_fd()];
            fds.into_iter()
                .flatten()
                .for_each(|fd| add(fd, libc::POLLIN, token));
        }
        add(self.signals.as_raw_fd(), libc::POLLIN, Token::Signals);
        for peer in &self.peers {
            let events = if peer.has_output() {
                libc::POLLIN | libc::POLLOUT
            } else {
                libc::POLLIN
            };
            add(peer.fd(), events, Token::Peer(peer.id));
        }
        if self.peers.len() < PEERS {
            add(self.listener.as_raw_fd(), libc::POLLIN, Token::Listener);
        }
        (fds, tokens)
    }

    fn timeout(&self) -> i32 {
        let execs = self.execs.iter().filter_map(|e| e.deadline);
        let drain = self
            .ended
            .filter(|_| self.exit.is_none())
            .map(|(_, _, until)| until);
        match execs.chain(drain).chain(self.output.deadline()).min() {
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
                self.output.read(fd, self.ended.is_some());
            }
            Token::Write(fd) => self.output.write(fd),
            Token::Report => self.check_creation(None),
            Token::Status => self.check_start(),
            Token::Exec(session) => self.check_exec(session),
            Token::Signals => self.reap(),
            Token::Listener => {
                if let Ok((socket, _)) = self.listener.accept() {
                    // The client may have disconnected already.
                    let _ = self.admit(socket.into());
                }
            }
            Token::Peer(id) => self.serve(id, events),
        }
    }

    fn admit(&mut self, socket: OwnedFd) -> io::Result<()> {
        let id = self.next_peer;
        self.next_peer += 1;
        self.peers.push(Peer::new(id, socket)?);
        let hello = Event::Hello {
            version: VERSION,
            phase: self.phase,
            pid: self.target.as_ref().map_or(0, |t| t.pid),
            start_time: self.start_time,
            exit: self.exit,
        };
        self.tell((id, 0), hello, Vec::new());
        Ok(())
    }

    fn serve(&mut self, id: u64, events: i16) {
        let Some(peer) = self.peers.iter_mut().find(|p| p.id == id) else {
            return;
        };
        if events & libc::POLLOUT != 0 && peer.flush().is_err() {
            return self.dismiss(id);
        }
        if events & !libc::POLLOUT == 0 {
            return;
        }
        match peer.read() {
            Ok(requests) => {
                for (request_id, request) in requests {
                    match request {
                        Ok(request) => self.request((id, request_id), request),
                        Err(text) => self.fail((id, request_id), text),
                    }
                }
            }
            Err(_) => self.dismiss(id),
        }
    }

    /// A client is gone, and its attach sessions with it. Its execs live on.
    fn dismiss(&mut self, id: u64) {
        self.peers.retain(|p| p.id != id);
        let gone: Vec<u32> = self
            .attached
            .iter()
            .filter(|a| a.1 == id)
            .map(|a| a.0)
            .collect();
        gone.into_iter()
            .for_each(|attach_id| self.detach(attach_id));
    }

    pub(crate) fn tell(&mut self, (peer, request): Asker, event: Event, fds: Vec<OwnedFd>) {
        let Some(found) = self.peers.iter_mut().find(|p| p.id == peer) else {
            return;
        };
        if found.send(request, &event, fds).is_err() {
            self.dismiss(peer);
        }
    }

    pub(crate) fn answer(&mut self, asker: Asker, done: Result<(), String>) {
        match done {
            Ok(()) => self.tell(asker, Event::Done, Vec::new()),
            Err(text) => self.fail(asker, text),
        }
    }

    pub(crate) fn fail(&mut self, asker: Asker, text: impl Into<String>) {
        self.tell(asker, Event::Failed { text: text.into() }, Vec::new());
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.execs.iter_mut().for_each(|e| e.tick(now));
        self.output.tick();
        if let Some((status, finished_at, until)) = self.ended
            && self.exit.is_none()
            && (self.output.ended() || until <= now)
        {
            self.conclude(status, finished_at);
        }
    }
}
