//! Exec: a process beside init, the monitor's own child, in all of the container's namespaces and cgroups.
//!
//! One fork: the monitor sets the pid namespace for its children, forks (straight into the exec's own cgroup on v2),
//! and sets it back. Everything the child needs is opened before; nothing of the host is opened after it has entered
//! the container. What it has to say it says over a close-on-exec pipe: end of file is success.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use cairn_monitor::cgroup::{self, Cgroups};
use cairn_monitor::filter::Filter;
use cairn_monitor::record::SECCOMP;
use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::sys::{self, Fork, Status};
use cairn_monitor::tail::{self, Tail};
use cairn_monitor::wire::{ExecRequest, Streams};

/// Init as execs need it; read once, when the container is made.
pub struct Target {
    pub pid: i32,
    pub pidfd: OwnedFd,
    /// Namespaces that are not ours, as setns(2) takes them.
    kinds: i32,
    /// Our own pid namespace, if init's is another.
    own_pid_namespace: Option<File>,
    uid_map: String,
}

impl Target {
    pub fn new(pid: i32) -> io::Result<Target> {
        const KINDS: [(&str, i32); 8] = [
            ("user", libc::CLONE_NEWUSER),
            ("mnt", libc::CLONE_NEWNS),
            ("net", libc::CLONE_NEWNET),
            ("ipc", libc::CLONE_NEWIPC),
            ("uts", libc::CLONE_NEWUTS),
            ("cgroup", libc::CLONE_NEWCGROUP),
            ("time", libc::CLONE_NEWTIME),
            ("pid", libc::CLONE_NEWPID),
        ];
        let pidfd = sys::pidfd_open(pid)?;
        let mut kinds = 0;
        for (name, kind) in KINDS {
            if inode(&format!("/proc/self/ns/{name}")) != inode(&format!("/proc/{pid}/ns/{name}")) {
                kinds |= kind;
            }
        }
        let other_pids = kinds & libc::CLONE_NEWPID != 0;
        let own_pid_namespace = other_pids
            .then(|| File::open("/proc/self/ns/pid"))
            .transpose()?;
        let uid_map = fs::read_to_string(format!("/proc/{pid}/uid_map"))?;
        Ok(Target {
            pid,
            pidfd,
            kinds: kinds & !libc::CLONE_NEWPID,
            own_pid_namespace,
            uid_map,
        })
    }

    /// A user of the container as the host knows him; unmapped is root.
    fn host_uid(&self, uid: u32) -> u32 {
        self.uid_map
            .lines()
            .find_map(|line| map_line(line, uid))
            .unwrap_or(0)
    }
}

fn map_line(line: &str, uid: u32) -> Option<u32> {
    let mut numbers = line.split_whitespace().map(str::parse::<u32>);
    let (inside, outside, count) = (
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
    );
    let offset = uid.checked_sub(inside)?;
    (offset < count).then(|| outside.checked_add(offset))?
}

fn inode(path: &str) -> Option<u64> {
    fs::metadata(path).ok().map(|m| m.ino())
}

/// A running exec.
pub struct Exec {
    pub session: u32,
    /// Who asked, and by which request.
    pub peer: u64,
    pub request: u32,
    pub pid: i32,
    group: Option<cgroup::Session>,
    /// The status pipe; none once it has ended.
    status: Option<OwnedFd>,
    error: Vec<u8>,
    /// For the client, with `ExecStarted`.
    streams: Streams,
    fds: Vec<OwnedFd>,
    /// The terminal's master comes through here, out of the container.
    console: Option<OwnedFd>,
    deadline: Option<Instant>,
    timed_out: bool,
    pub exit: Option<Status>,
    announced: bool,
}

/// What the status pipe of an exec came to.
pub enum Outcome {
    Pending,
    Started(Streams, Vec<OwnedFd>),
    Failed(String),
}

/// What only the child uses.
struct ChildEnds {
    stdio: Option<[OwnedFd; 3]>,
    null_stdin: bool,
    status: OwnedFd,
    console: Option<OwnedFd>,
    window: Option<(u16, u16)>,
    tasks: Vec<File>,
    scheduling: Scheduling,
}

impl Exec {
    pub fn start(
        session: u32,
        (peer, request): (u64, u32),
        exec: ExecRequest,
        target: &Target,
        cgroups: &Cgroups,
    ) -> Result<Exec, String> {
        let at = |step: &'static str| move |e: io::Error| format!("{step}: {e}");
        let filter = exec.process.seccomp.then(read_filter).transpose()?;
        let scheduling = Scheduling::read()?;
        let host_uid = target.host_uid(exec.process.uid);
        let tail = Tail::new(exec.process, filter.as_ref())?;
        let group = cgroups
            .make_session(session)
            .map_err(at("make the exec's cgroup"))?;
        let mut started = Exec {
            session,
            peer,
            request,
            pid: 0,
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
            .open_ends(exec.tty, exec.stdin, exec.window, host_uid)
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
            let _still_roots = if uid != 0 {
                sys::chown_fd(fd.as_raw_fd(), uid)
            } else {
                Ok(())
            };
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
        tasks.extend(
            self.group
                .as_ref()
                .map(|g| g.tasks())
                .transpose()?
                .flatten(),
        );
        Ok(tasks)
    }

    fn fork(&mut self, tail: &Tail, target: &Target, ends: ChildEnds) -> io::Result<()> {
        let directory = self
            .group
            .as_ref()
            .map(|g| g.directory())
            .transpose()?
            .flatten();
        if target.own_pid_namespace.is_some() {
            sys::setns(target.pidfd.as_fd(), libc::CLONE_NEWPID)?;
        }
        // SAFETY: the monitor has one thread; the child ends in `child`, which does not return.
        #[allow(unsafe_code)]
        let forked = unsafe { sys::fork_into(directory.as_ref().map(|d| d.as_fd())) };
        if let Ok(Fork::Child) = forked {
            child(tail, target, ends);
        }
        if let Some(own) = &target.own_pid_namespace
            && sys::setns(own.as_fd(), libc::CLONE_NEWPID).is_err()
        {
            // The next helper would be born in the container.
            std::process::abort();
        }
        if let Fork::Parent(pid) = forked? {
            self.pid = pid;
        }
        Ok(())
    }

    /// To poll, until the outcome is known.
    pub fn status_fd(&self) -> Option<i32> {
        self.status.as_ref().map(|fd| fd.as_raw_fd())
    }

    /// Reads the status pipe. `Started` and `Failed` come once.
    pub fn outcome(&mut self) -> Outcome {
        let Some(status) = &self.status else {
            return Outcome::Pending;
        };
        let mut buf = [0; 512];
        loop {
            match sys::read(status.as_fd(), &mut buf) {
                Ok(0) => break,
                Ok(n) => self.error.extend_from_slice(&buf[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
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
        if let Some(console) = self.console.take() {
            match sys::receive_fd(console.as_fd(), &mut [0; 8]) {
                Ok((_, Some(master))) => self.fds.push(master),
                _ => return Outcome::Failed("the terminal did not arrive".to_owned()),
            }
        }
        self.announced = true;
        Outcome::Started(self.streams, std::mem::take(&mut self.fds))
    }

    /// The client knows of it and waits for its end.
    pub fn announced(&self) -> bool {
        self.announced
    }

    pub fn timed_out(&self) -> bool {
        self.timed_out
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Kills it, with all it started, if its time is over.
    pub fn tick(&mut self, now: Instant) {
        if self.deadline.is_some_and(|d| d <= now) {
            self.deadline = None;
            self.timed_out = true;
            let _already_gone = self.kill();
        }
    }

    pub fn kill(&self) -> io::Result<()> {
        match &self.group {
            Some(group) => group.kill(),
            None => sys::kill(self.pid, libc::SIGKILL),
        }
    }

    /// The group, to be removed once the background children are gone too.
    pub fn into_group(self) -> Option<cgroup::Session> {
        self.group
    }
}

fn read_filter() -> Result<Filter, String> {
    let bytes = fs::read(SECCOMP).map_err(|e| format!("read the seccomp filter: {e}"))?;
    Filter::decode(&bytes).map_err(|e| e.to_string())
}

/// The child's whole life before its program.
fn child(tail: &Tail, target: &Target, ends: ChildEnds) -> ! {
    let error = match enter(tail, target, &ends) {
        Ok(()) => tail.describe(&tail.run()),
        Err((step, e)) => format!("{step}: {e}"),
    };
    let _nobody_listens = sys::write(ends.status.as_fd(), error.as_bytes());
    sys::exit_now(127)
}

type Step = (&'static str, io::Error);

fn enter(tail: &Tail, target: &Target, ends: &ChildEnds) -> Result<(), Step> {
    let at = |step| move |e| (step, e);
    sys::default_signals();
    for mut tasks in &ends.tasks {
        tasks
            .write_all(b"0")
            .map_err(at("join the container's cgroups"))?;
    }
    ends.scheduling.apply()?;
    let process = tail.process();
    fs::write(
        "/proc/self/oom_score_adj",
        process.oom_score_adj.to_string(),
    )
    .map_err(at("set oom_score_adj"))?;
    if let Some(profile) = &process.apparmor {
        let exec = [b"exec ", profile.as_slice()].concat();
        fs::write("/proc/self/attr/apparmor/exec", exec).map_err(at("set the AppArmor profile"))?;
    }
    tail::raise_limits(process).map_err(at("raise resource limits"))?;
    if let Some(stdio) = &ends.stdio {
        for (fd, number) in stdio.iter().zip(0..) {
            sys::dup_to(fd.as_raw_fd(), number).map_err(at("set stdio"))?;
        }
    }
    let mut keep = vec![target.pidfd.as_raw_fd(), ends.status.as_raw_fd()];
    keep.extend(ends.console.as_ref().map(|c| c.as_raw_fd()));
    // SAFETY: this child uses the three only, and ends by execve or `exit_now`: no destructor runs.
    #[allow(unsafe_code)]
    unsafe {
        sys::close_all_but(&mut keep);
    }
    if target.kinds != 0 {
        sys::setns(target.pidfd.as_fd(), target.kinds)
            .map_err(at("enter the container's namespaces"))?;
    }
    sys::setsid().map_err(at("make a session"))?;
    if let Some(console) = &ends.console {
        return take_terminal(console, ends.window).map_err(at("open a terminal"));
    }
    if ends.null_stdin {
        null_stdin();
    }
    Ok(())
}

fn take_terminal(console: &OwnedFd, window: Option<(u16, u16)>) -> io::Result<()> {
    let (master, slave) = sys::open_pty()?;
    if let Some((columns, rows)) = window {
        sys::set_window(master.as_fd(), columns, rows)?;
    }
    sys::send(console.as_fd(), b"pty", &[master.as_raw_fd()])?;
    sys::take_terminal(slave.as_fd())?;
    (0..3).try_for_each(|n| sys::dup_to(slave.as_raw_fd(), n))
}

/// The container's own /dev/null if it is one; else what is there: a pipe at its end.
fn null_stdin() {
    use std::os::unix::fs::OpenOptionsExt;
    const DEV_NULL: u64 = libc::makedev(1, 3);
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    if let Ok(null) = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open("/dev/null")
        && sys::stat_fd(null.as_raw_fd()).is_ok_and(|(_, device)| device == Some(DEV_NULL))
    {
        let _pipe_stays = sys::dup_to(null.as_raw_fd(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::map_line;

    #[test]
    fn a_user_of_the_container_is_found_in_its_map() {
        assert_eq!(
            map_line("         0     100000      65536", 1000),
            Some(101_000)
        );
        assert_eq!(map_line("         0          0 4294967295", 7), Some(7));
        assert_eq!(map_line("0 100000 10", 10), None);
        assert_eq!(map_line("5 100000 10", 4), None);
        assert_eq!(map_line("0 4294967295 10", 5), None);
    }
}
