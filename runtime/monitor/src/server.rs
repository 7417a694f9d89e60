//! The poll loop, and the one place where the container's phase changes (see `main.rs` for the picture).
//!
//! Everything here returns quickly; what takes time (the helper, execve, processes dying) is waited for in `poll`.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use cairn_monitor::cgroup::{self, Cgroups};
use cairn_monitor::log::Stream;
use cairn_monitor::record::{CTL, EXIT, Exit, Launch, PID, Pid};
use cairn_monitor::sys::{self, Status};
use cairn_monitor::wire::{Event, Phase, VERSION};

use crate::create::{Creation, has_hooks, notify, run_hooks};
use crate::output::{self, Output};
use crate::peer::Peer;
use crate::session::{Exec, Outcome, Target};

/// How long output may be drained after init has exited and everything in its cgroup was killed.
const DRAIN: Duration = Duration::from_secs(2);
/// Connections at a time.
const PEERS: usize = 16;

/// Who waits for an answer: connection and request.
pub(crate) type Asker = (u64, u32);

/// The monitor. Fields are owned by it alone; requests (`request.rs`) change them through its methods.
pub struct Server {
    pub(crate) launch: Launch,
    pub(crate) cgroups: Cgroups,
    pub(crate) phase: Phase,
    pub(crate) output: Output,
    pub(crate) execs: Vec<Exec>,
    pub(crate) next_number: u32,
    pub(crate) creation: Option<Creation>,
    pub(crate) target: Option<Target>,
    /// The write end of the container's stdin, or its terminal's master.
    pub(crate) stdin: Option<OwnedFd>,
    /// Attach sessions: id, connection, with stdin.
    pub(crate) attached: Vec<(u32, u64, bool)>,
    pub(crate) waits_for_create: Option<Asker>,
    pub(crate) waits_for_start: Option<Asker>,
    /// OCI hooks at work: the helper's pid, and who waits for their end and what follows it.
    hooking: Option<(i32, Asker, After)>,
    /// The poststop hooks have run.
    pub(crate) stopped: bool,
    /// Deleted: end as soon as the answer is sent.
    pub(crate) over: bool,
    start_time: u64,
    started: bool,
    peers: Vec<Peer>,
    next_peer: u64,
    listener: UnixListener,
    signals: OwnedFd,
    /// Children reaped before we knew whose they are: init can die before its pid is reported.
    strays: Vec<(i32, Status)>,
    /// Init's end, and until when its output is drained.
    ended: Option<(Status, u64, Instant)>,
    exit: Option<Exit>,
    /// Groups of ended execs in which background children still run.
    leftovers: Vec<cgroup::Session>,
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
    pub fn new(launch: Launch, daemon: OwnedFd) -> io::Result<Server> {
        let signals = sys::child_signal_fd()?;
        match fs::remove_file(CTL) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(CTL)?;
        listener.set_nonblocking(true)?;
        let output = Output::new(launch.log_path.as_deref(), launch.max_log_line)?;
        let mut server = Server {
            cgroups: Cgroups::new(&launch.cgroups),
            launch,
            phase: Phase::Empty,
            output,
            execs: Vec::new(),
            next_number: 1,
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
    pub fn run(mut self) -> io::Result<()> {
        loop {
            if self.over && self.peers.iter().all(|p| !p.has_output()) {
                return Ok(());
            }
            if self.peers.is_empty() && !self.started && self.exit.is_none() {
                // Also what the daemon asked for last and will not hear: it rolls back by the record it has.
                return crate::purge(&self.cgroups);
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
            creation
                .report_fd()
                .into_iter()
                .for_each(|fd| add(fd, libc::POLLIN, Token::Report));
            creation
                .status_fd()
                .into_iter()
                .for_each(|fd| add(fd, libc::POLLIN, Token::Status));
        }
        for exec in &self.execs {
            let token = Token::Exec(exec.session);
            exec.status_fd()
                .into_iter()
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
        let execs = self.execs.iter().filter_map(Exec::deadline);
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
            Token::Read(fd) => self.output.read(fd, self.ended.is_some()),
            Token::Write(fd) => self.output.write(fd),
            Token::Report => self.check_creation(None),
            Token::Status => self.check_start(),
            Token::Exec(session) => self.check_exec(session),
            Token::Signals => self.reap(),
            Token::Listener => {
                if let Ok((socket, _)) = self.listener.accept() {
                    let _hung_up_again = self.admit(socket.into());
                }
            }
            Token::Peer(id) => self.serve(id, events),
        }
    }

    fn admit(&mut self, socket: OwnedFd) -> io::Result<()> {
        let id = self.next_peer;
        self.next_peer += 1;
        self.peers.push(Peer::new(id, socket)?);
        let (phase, exit, start_time) = (self.phase, self.exit, self.start_time);
        let pid = self.target.as_ref().map_or(0, |t| t.pid);
        self.tell(
            (id, 0),
            Event::Hello {
                version: VERSION,
                phase,
                pid,
                start_time,
                exit,
            },
            Vec::new(),
        );
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

    pub(crate) fn fail(&mut self, asker: Asker, text: impl Into<String>) {
        self.tell(asker, Event::Failed { text: text.into() }, Vec::new());
    }

    fn reap(&mut self) {
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
        if let Some(exec) = self.execs.iter_mut().find(|e| e.pid == pid) {
            exec.exit = Some(status);
            let session = exec.session;
            return self.check_exec(session);
        }
        if self.phase == Phase::Creating {
            self.strays.push((pid, status));
        }
    }

    /// Reads what the helper said. `helper`: it has ended, nothing more will come.
    fn check_creation(&mut self, helper: Option<Status>) {
        let Some(creation) = &mut self.creation else {
            return;
        };
        creation.read_report();
        if self.phase != Phase::Creating {
            return;
        }
        let result = match (creation.pid, helper) {
            (Some(pid), _) => match creation.take_terminal() {
                Ok(terminal) => self
                    .adopt(pid, terminal)
                    .map_err(|e| format!("take over init: {e}")),
                Err(e) => Err(format!("take over the terminal: {e}")),
            },
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
        fs::write(
            PID,
            Pid {
                pid,
                start_time: self.start_time,
                boot_id,
                monitor,
            }
            .to_text(),
        )?;
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

    fn check_start(&mut self) {
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
        match result {
            Ok(()) => self.tell(asker, Event::Done, Vec::new()),
            Err(text) => self.fail(asker, text),
        }
    }

    fn check_exec(&mut self, session: u32) {
        let Some(at) = self.execs.iter().position(|e| e.session == session) else {
            return;
        };
        let exec = &mut self.execs[at];
        let asker = (exec.peer, exec.request);
        let pid = exec.pid;
        match exec.outcome() {
            Outcome::Pending => {}
            Outcome::Started(streams, fds) => {
                self.tell(
                    asker,
                    Event::ExecStarted {
                        session,
                        pid,
                        streams,
                    },
                    fds,
                );
            }
            Outcome::Failed(text) => self.fail(asker, text),
        }
        let exec = &self.execs[at];
        if let (Some(Status { code, signal }), None) = (exec.exit, exec.status_fd()) {
            let (announced, timed_out) = (exec.announced(), exec.timed_out());
            self.leftovers
                .extend(self.execs.remove(at).into_group().filter(|g| !g.remove()));
            if announced {
                self.tell(
                    asker,
                    Event::ExecExited {
                        session,
                        code,
                        signal,
                        timed_out,
                    },
                    Vec::new(),
                );
            }
        }
    }

    /// Init is dead: so is, a moment later, everything in its cgroup (CRI-258: a container in a shared pid namespace
    /// leaves nothing behind).
    fn init_ended(&mut self, status: Status) {
        let finished_at = output::now();
        self.check_start();
        let _what_is_left_is_tried_again_at_delete = self.cgroups.kill_all();
        self.ended = Some((status, finished_at, Instant::now() + DRAIN));
        self.stdin = None;
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

    fn conclude(&mut self, status: Status, finished_at: u64) {
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
            let _nobody_reads = writeln!(io::stderr(), "cairn-monitor: write the exit file: {e}");
        }
        self.exit = Some(exit);
        self.phase = Phase::Exited;
        let ids: Vec<u64> = self.peers.iter().map(|p| p.id).collect();
        for id in ids {
            self.tell((id, 0), Event::Exited(exit), Vec::new());
        }
    }
}

/// Field 22 of `/proc/<pid>/stat`; the second field may contain anything, so from the last `)` on.
fn start_time(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after
        .split_whitespace()
        .nth(19)
        .and_then(|f| f.parse().ok());
    field.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "/proc/<pid>/stat has no start time",
        )
    })
}

/// Atomic: temporary file, fdatasync, rename.
fn write_exit(exit: &Exit) -> io::Result<()> {
    const TEMPORARY: &str = "exit.tmp";
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(TEMPORARY)?;
    file.write_all(exit.to_text().as_bytes())?;
    file.sync_data()?;
    fs::rename(TEMPORARY, EXIT)
}
