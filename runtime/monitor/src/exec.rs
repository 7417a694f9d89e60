//! One exec, from its start to its end, its deadline (`tick`) or its kill.
//!
//! An exec is a child of the monitor, in all of the container's namespaces and cgroups.
//!
//! Until it is inside, the container cannot see it. The monitor forks a *joiner* (on v2 directly
//! into the exec's own cgroup), which never enters the container's pid namespace. The joiner closes
//! unneeded descriptors, joins the other namespaces and becomes the user with all limits. Only then
//! does it clone the exec into the pid namespace, as its sibling, with the container's rights, root
//! and descriptors. The monitor opens all that both need before the fork; afterwards they open
//! nothing of the host. Both report errors over a close-on-exec pipe: end of file is success.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use cairn_monitor::cgroup::{self, Cgroups};
use cairn_monitor::filter::Filter;
use cairn_monitor::own_file;
use cairn_monitor::record::SECCOMP;
use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::sys::{self, Cpu, Fork, Status};
use cairn_monitor::tail::Tail;
use cairn_monitor::wire::{ExecRequest, Streams};

use crate::joiner::{ChildEnds, join};
use crate::target::Target;

pub(crate) struct Exec {
    pub(crate) session: u32,
    /// The requesting client, and its request.
    pub(crate) peer: u64,
    pub(crate) request: u32,
    /// Unknown until the joiner has reported it.
    pid: Option<i32>,
    joiner: Joiner,
    /// Its scheduler; set by the monitor, which has the privilege.
    cpu: Option<Cpu>,
    group: Option<cgroup::Session>,
    /// The status pipe, until its end.
    status: Option<OwnedFd>,
    error: Vec<u8>,
    /// For the client, with `ExecStarted`.
    streams: Streams,
    fds: Vec<OwnedFd>,
    /// Receives the terminal's master from inside the container.
    console: Option<OwnedFd>,
    /// The time to kill it, with all its descendants.
    pub(crate) deadline: Option<Instant>,
    pub(crate) timed_out: bool,
    pub(crate) exit: Option<Status>,
    /// The client knows its session and waits for its end.
    pub(crate) announced: bool,
}

/// The process that creates an exec.
struct Joiner {
    /// 0 once it has ended.
    pid: i32,
    /// Receives the pid of the exec.
    birth: OwnedFd,
    /// Sending a byte lets the exec run; closing it unsent ends the exec.
    go: Option<OwnedFd>,
}

/// The result of an exec's status pipe.
pub(crate) enum Outcome {
    Pending,
    Started(Streams, Vec<OwnedFd>),
    Failed(String),
}

/// Longer than any message; a container with SYS_PTRACE may write to the pipe.
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

    /// Opens pipes or the console socket; our ends stay here.
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
            // The user must own them to open /dev/stdout by name; root owns them already.
            if uid != 0 {
                let _ = sys::chown_fd(fd.as_fd(), uid); // on failure root stays the owner
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
        // Last: the exec's own group is below one of the others.
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

    /// Whether the reaped process is the exec or its joiner.
    pub(crate) fn concerns(&mut self, pid: i32) -> bool {
        self.read_birth(Some(pid));
        // The pid of an ended exec may be reused.
        pid == self.joiner.pid || (self.exit.is_none() && Some(pid) == self.pid)
    }

    /// Reads the exec's pid, sets its scheduler, and lets it run. A container with SYS_PTRACE may
    /// write to the pipe too: only the pid of a child counts, or of the one just `reaped`.
    /// Otherwise the exec stays unknown, and ends as `go` is closed.
    fn read_birth(&mut self, reaped: Option<i32>) {
        if self.joiner.go.is_none() {
            return;
        }
        let mut pid = [0; 4];
        match sys::read(self.joiner.birth.as_fd(), &mut pid) {
            Ok(4) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            // The joiner ended without an exec.
            _ => return self.joiner.go = None,
        }
        let pid = i32::from_ne_bytes(pid);
        let go = self.joiner.go.take();
        if !sys::is_child(pid) {
            self.pid = reaped.filter(|reaped| *reaped == pid);
            return;
        }
        self.pid = Some(pid);
        match self.cpu.map_or(Ok(()), |c| sys::set_scheduler(pid, &c)) {
            Ok(()) => {
                // A failed write: it was killed meanwhile, and its end reports that.
                let _ = go.map(|go| sys::write(go.as_fd(), &[1]));
            }
            Err(e) => self.error = format!("set the scheduler: {e}").into_bytes(),
        }
    }

    /// The descriptor to poll until the exec's pid is known.
    pub(crate) fn birth_fd(&self) -> Option<i32> {
        let unknown = self.joiner.go.is_some();
        unknown.then(|| self.joiner.birth.as_raw_fd())
    }

    /// Handles the end of the exec or its joiner.
    pub(crate) fn child_ended(&mut self, pid: i32, status: Status) {
        let is_joiner = pid == self.joiner.pid;
        if is_joiner {
            self.joiner.pid = 0;
        }
        // The joiner sends no further reports. Without an exec, or with one reaped before its pid
        // was reported, the joiner's end is the exec's end.
        if !is_joiner || self.pid.is_none_or(|pid| !sys::is_child(pid)) {
            self.exit.get_or_insert(status);
            self.deadline = None;
            // The joiner has reported everything; only its end is outstanding.
            self.kill_joiner();
        }
    }

    pub(crate) fn has_joiner(&self) -> bool {
        self.joiner.pid != 0
    }

    /// The pid in the daemon's pid namespace; 0 if unknown.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.unwrap_or(0)
    }

    /// The descriptor to poll until the outcome is known.
    pub(crate) fn status_fd(&self) -> Option<i32> {
        self.status.as_ref().map(|fd| fd.as_raw_fd())
    }

    /// Reads the status pipe. `Started` and `Failed` come once.
    pub(crate) fn outcome(&mut self) -> Outcome {
        self.read_birth(None);
        let Some(status) = &self.status else {
            return Outcome::Pending;
        };
        let mut buf = [0; 512];
        loop {
            match sys::read(status.as_fd(), &mut buf) {
                Ok(0) => break,
                Ok(n) if self.error.len() < MAX_ERROR => self.error.extend_from_slice(&buf[..n]),
                Ok(_) => break,
                // An ended process writes no further bytes, even if another process still has the
                // pipe open.
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
                return Outcome::Failed(
                    "the exec was killed before it entered the container".to_owned(),
                );
            }
            // The client set this timeout: it is reported with the exit, not as a failure.
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

    /// Kills it and all its descendants at its deadline.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline.is_some_and(|d| d <= now) {
            self.deadline = None;
            self.timed_out = true;
            if self.pid.is_none() {
                // Closes `go`, so that the exec ends by itself wherever it is.
                self.joiner.go = None;
            }
            let _ = self.kill(); // it may have exited
        }
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        // First: on v1 the joiner may not be in the group yet. Its death prevents a later exec.
        self.kill_joiner();
        match (&self.group, self.pid) {
            (Some(group), _) => group.kill(),
            (None, Some(pid)) if self.exit.is_none() => sys::kill(pid, libc::SIGKILL),
            (None, _) => Ok(()),
        }
    }

    fn kill_joiner(&self) {
        if self.has_joiner() {
            let _ = sys::kill(self.joiner.pid, libc::SIGKILL); // it may have exited
        }
    }

    /// The group, to be removed once its background children have ended.
    pub(crate) fn into_group(self) -> Option<cgroup::Session> {
        self.group
    }
}

fn read_filter() -> Result<Filter, String> {
    let bytes = own_file::read(SECCOMP).map_err(|e| format!("read the seccomp filter: {e}"))?;
    Filter::decode(&bytes).map_err(|e| e.to_string())
}
