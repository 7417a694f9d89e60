//! Exec: a process beside init, the monitor's own child, in all of the container's namespaces and cgroups.
//!
//! Nothing of it can be seen from inside before it is inside. The monitor forks a *joiner* (straight into the exec's
//! own cgroup on v2), which never is in the container's pid namespace itself. It closes what it does not need, joins the
//! other namespaces, becomes the user with all his limits, and only then clones the exec into the pid namespace, as its
//! sibling: the monitor's own child, with the rights, the root and the descriptors of the container. Everything either
//! needs is opened before; nothing of the host is opened after that. What they have to say they say over a close-on-exec
//! pipe: end of file is success.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use cairn_monitor::cgroup::{self, Cgroups};
use cairn_monitor::filter::Filter;
use cairn_monitor::record::SECCOMP;
use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::sys::{self, Cpu, Fork, Status};
use cairn_monitor::tail::Tail;
use cairn_monitor::wire::{ExecRequest, Streams};

use crate::joiner::{ChildEnds, join};
use crate::target::Target;

/// A running exec.
pub(crate) struct Exec {
    pub(crate) session: u32,
    /// Who asked, and by which request.
    pub(crate) peer: u64,
    pub(crate) request: u32,
    /// None while its joiner has not told it.
    pid: Option<i32>,
    joiner: Joiner,
    /// How it is scheduled; given to it by the monitor, which has the privilege.
    cpu: Option<Cpu>,
    group: Option<cgroup::Session>,
    /// The status pipe; none once it has ended.
    status: Option<OwnedFd>,
    error: Vec<u8>,
    /// For the client, with `ExecStarted`.
    streams: Streams,
    fds: Vec<OwnedFd>,
    /// The terminal's master comes through here, out of the container.
    console: Option<OwnedFd>,
    /// When it is killed, with all it started.
    pub(crate) deadline: Option<Instant>,
    pub(crate) timed_out: bool,
    pub(crate) exit: Option<Status>,
    /// The client knows of it and waits for its end.
    pub(crate) announced: bool,
}

/// The process that makes an exec.
struct Joiner {
    /// 0 once it has ended.
    pid: i32,
    /// Here it tells the pid of the exec.
    birth: OwnedFd,
    /// A byte lets the exec run on; none once it has it. By its end it ends.
    go: Option<OwnedFd>,
}

/// What the status pipe of an exec came to.
pub(crate) enum Outcome {
    Pending,
    Started(Streams, Vec<OwnedFd>),
    Failed(String),
}

/// The kernel's limit is longer than anything that is said there; a container with SYS_PTRACE may write to it.
const MAX_ERROR: usize = 4096;

impl Exec {
    pub(crate) fn start(
        session: u32,
        peer: u64,
        request: u32,
        exec: ExecRequest,
        target: &Target,
        cgroups: &Cgroups,
    ) -> Result<Exec, String> {
        let at = |step: &'static str| move |e: io::Error| format!("{step}: {e}");
        let filter = exec.process.seccomp.then(read_filter).transpose()?;
        let scheduling = Scheduling::read()?;
        let host_uid = target.host_uid(exec.process.uid);
        let tail = Tail::new(exec.process, filter.as_ref())?;
        let (birth, child_birth) = sys::pipe().map_err(at("start the exec"))?;
        sys::set_nonblocking(birth.as_fd()).map_err(at("start the exec"))?;
        let (child_go, go) = sys::pipe().map_err(at("start the exec"))?;
        let group = cgroups
            .make_session(session)
            .map_err(at("make the exec's cgroup"))?;
        let mut started = Exec {
            session,
            peer,
            request,
            pid: None,
            joiner: Joiner {
                pid: 0,
                birth,
                go: Some(go),
            },
            cpu: scheduling.cpu,
            group,
            status: None,
            error: Vec::new(),
            streams: Streams::default(),
            fds: Vec::new(),
            console: None,
            deadline: (exec.timeout_ms > 0)
                .then(|| Instant::now() + Duration::from_millis(exec.timeout_ms)),
            timed_out: false,
            exit: None,
            announced: false,
        };
        let forked = started
            .open_ends(
                child_birth,
                child_go,
                exec.tty,
                exec.stdin,
                exec.window,
                host_uid,
            )
            .and_then(|mut ends| {
                ends.tasks = started.tasks(cgroups)?;
                ends.scheduling = scheduling;
                started.fork(&tail, target, ends)
            })
            .map_err(at("start the exec"));
        if let Err(text) = forked {
            started.group.iter().for_each(|g| {
                g.remove();
            });
            return Err(text);
        }
        Ok(started)
    }

    /// Pipes or the console socket; our ends stay here.
    fn open_ends(
        &mut self,
        birth: OwnedFd,
        go: OwnedFd,
        tty: bool,
        stdin: bool,
        window: Option<(u16, u16)>,
        uid: u32,
    ) -> io::Result<ChildEnds> {
        let (status, child_status) = sys::pipe()?;
        sys::set_nonblocking(status.as_fd())?;
        self.status = Some(status);
        let mut ends = ChildEnds {
            stdio: None,
            null_stdin: !stdin,
            status: child_status,
            birth,
            go,
            console: None,
            window,
            tasks: Vec::new(),
            scheduling: Scheduling::default(),
        };
        if tty {
            let (ours, theirs) = sys::seqpacket_pair()?;
            sys::set_nonblocking(ours.as_fd())?;
            self.console = Some(ours);
            ends.console = Some(theirs);
            self.streams.master = true;
            return Ok(ends);
        }
        let (in_read, in_write) = sys::pipe()?;
        let (out_read, out_write) = sys::pipe()?;
        let (err_read, err_write) = sys::pipe()?;
        for fd in [&in_read, &out_write, &err_write] {
            // So that the user can open /dev/stdout by name; root's otherwise.
            if uid != 0 {
                // If it fails, root stays the owner.
                let _ = sys::chown_fd(fd.as_fd(), uid);
            }
        }
        self.streams = Streams {
            stdin,
            stdout: true,
            stderr: true,
            master: false,
        };
        if stdin {
            self.fds.push(in_write);
        }
        self.fds.extend([out_read, err_read]);
        ends.stdio = Some([in_read, out_write, err_write]);
        Ok(ends)
    }

    fn tasks(&self, cgroups: &Cgroups) -> io::Result<Vec<File>> {
        let mut tasks = cgroups.tasks()?;
        // After its parent: the exec's own group lies below one of them.
        if let Some(group) = &self.group {
            tasks.extend(group.tasks()?);
        }
        Ok(tasks)
    }

    fn fork(&mut self, tail: &Tail, target: &Target, ends: ChildEnds) -> io::Result<()> {
        let directory = match &self.group {
            Some(group) => group.directory()?,
            None => None,
        };
        match sys::fork_into(directory.as_ref().map(|d| d.as_fd()))? {
            Fork::Child => join(tail, target, ends),
            Fork::Parent(pid) => self.joiner.pid = pid,
        }
        Ok(())
    }

    /// Whether a child of the monitor is this exec or its joiner.
    pub(crate) fn concerns(&mut self, pid: i32) -> bool {
        self.learn();
        // The number of one that has ended may be another's.
        pid == self.joiner.pid || (self.exit.is_none() && Some(pid) == self.pid)
    }

    /// Reads who the exec is, and lets it go.
    fn learn(&mut self) {
        if self.joiner.go.is_none() {
            return;
        }
        let mut pid = [0; 4];
        match sys::read(self.joiner.birth.as_fd(), &mut pid) {
            Ok(4) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            // The joiner ended before.
            _ => return self.joiner.go = None,
        }
        let pid = i32::from_ne_bytes(pid);
        self.pid = Some(pid);
        let go = self.joiner.go.take();
        match self.cpu.map_or(Ok(()), |c| sys::set_scheduler(pid, &c)) {
            Ok(()) => {
                // It may have been killed meanwhile: its end tells that.
                let _ = go.map(|go| sys::write(go.as_fd(), &[1]));
            }
            Err(e) if sys::is_child(pid) => {
                self.error = format!("set the scheduler: {e}").into_bytes();
            }
            Err(_) => {}
        }
    }

    /// To poll, until it is known who the exec is.
    pub(crate) fn birth_fd(&self) -> Option<i32> {
        let unknown = self.joiner.go.is_some();
        unknown.then(|| self.joiner.birth.as_raw_fd())
    }

    /// One of the two has ended.
    pub(crate) fn buried(&mut self, pid: i32, status: Status) {
        let is_joiner = pid == self.joiner.pid;
        if is_joiner {
            self.joiner.pid = 0;
        }
        // After the joiner nothing more is told: without an exec, or with one that was killed and buried before the
        // joiner could tell of it, its end is the end.
        if !is_joiner || self.pid.is_none_or(|pid| !sys::is_child(pid)) {
            self.exit.get_or_insert(status);
            self.deadline = None;
            // It has told all that it had to, and its end is waited for.
            self.kill_joiner();
        }
    }

    /// Its joiner has not ended.
    pub(crate) fn has_joiner(&self) -> bool {
        self.joiner.pid != 0
    }

    /// In the daemon's pid namespace; none is 0.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.unwrap_or(0)
    }

    /// To poll, until the outcome is known.
    pub(crate) fn status_fd(&self) -> Option<i32> {
        self.status.as_ref().map(|fd| fd.as_raw_fd())
    }

    /// Reads the status pipe. `Started` and `Failed` come once.
    pub(crate) fn outcome(&mut self) -> Outcome {
        self.learn();
        let Some(status) = &self.status else {
            return Outcome::Pending;
        };
        let mut buf = [0; 512];
        loop {
            match sys::read(status.as_fd(), &mut buf) {
                Ok(0) => break,
                Ok(n) if self.error.len() < MAX_ERROR => self.error.extend_from_slice(&buf[..n]),
                Ok(_) => break,
                // A process that has ended says no more, whoever else may hold the pipe for a moment.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.exit.is_none() => {
                    return Outcome::Pending;
                }
                Err(_) => break,
            }
        }
        self.status = None;
        if !self.error.is_empty() {
            return Outcome::Failed(String::from_utf8_lossy(&self.error).into_owned());
        }
        if self.pid.is_none() {
            if !self.timed_out {
                return Outcome::Failed("it was killed before it entered the container".to_owned());
            }
            // The client asked for this end: it is told with the exit, not as a failure.
            self.announced = true;
            return Outcome::Started(Streams::default(), Vec::new());
        }
        if let Some(console) = self.console.take() {
            match sys::receive_fd(console.as_fd(), &mut [0; 8]) {
                Ok((_, Some(master))) => self.fds.push(master),
                _ => return Outcome::Failed("no terminal was received".to_owned()),
            }
        }
        self.announced = true;
        Outcome::Started(self.streams, std::mem::take(&mut self.fds))
    }

    /// Kills it, with all it started, if its time is over.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline.is_some_and(|d| d <= now) {
            self.deadline = None;
            self.timed_out = true;
            if self.pid.is_none() {
                // Not let go any more: it ends by itself, wherever it is.
                self.joiner.go = None;
            }
            // It may have ended already.
            let _ = self.kill();
        }
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        // First, since on v1 it may not be in the group yet: an exec that it has not made then is not made any more.
        self.kill_joiner();
        match (&self.group, self.pid) {
            (Some(group), _) => group.kill(),
            (None, Some(pid)) if self.exit.is_none() => sys::kill(pid, libc::SIGKILL),
            (None, _) => Ok(()),
        }
    }

    fn kill_joiner(&self) {
        if self.has_joiner() {
            // It may have ended already.
            let _ = sys::kill(self.joiner.pid, libc::SIGKILL);
        }
    }

    /// The group, to be removed once the background children are gone too.
    pub(crate) fn into_group(self) -> Option<cgroup::Session> {
        self.group
    }
}

fn read_filter() -> Result<Filter, String> {
    let bytes = fs::read(SECCOMP).map_err(|e| format!("read the seccomp filter: {e}"))?;
    Filter::decode(&bytes).map_err(|e| e.to_string())
}
