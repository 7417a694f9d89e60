//! Exec: a process beside init, the monitor's own child, in all of the container's namespaces and cgroups.
//!
//! Nothing of it can be seen from inside before it is inside. The monitor forks a *joiner* (straight into the exec's
//! own cgroup on v2), which never is in the container's pid namespace itself. It closes what it does not need, joins the
//! other namespaces, becomes the user with all his limits, and only then clones the exec into the pid namespace, as its
//! sibling: the monitor's own child, with the rights, the root and the descriptors of the container. Everything either
//! needs is opened before; nothing of the host is opened after that. What they have to say they say over a close-on-exec
//! pipe: end of file is success.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use cairn_monitor::cgroup::{self, Cgroups};
use cairn_monitor::filter::Filter;
use cairn_monitor::record::SECCOMP;
use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::sys::{self, Cpu, Fork, Status};
use cairn_monitor::tail::{self, Tail};
use cairn_monitor::wire::{ExecRequest, Streams};
use rustix::thread::ThreadNameSpaceType;

/// Init as execs need it; read once, when the container is made.
pub(crate) struct Target {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    /// Namespaces that are not ours, as setns(2) takes them.
    kinds: ThreadNameSpaceType,
    uid_map: String,
}

impl Target {
    pub(crate) fn new(pid: i32) -> io::Result<Target> {
        const KINDS: [(&str, ThreadNameSpaceType); 8] = [
            ("user", ThreadNameSpaceType::USER),
            ("mnt", ThreadNameSpaceType::MOUNT),
            ("net", ThreadNameSpaceType::NETWORK),
            ("ipc", ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION),
            ("uts", ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME),
            ("cgroup", ThreadNameSpaceType::CONTROL_GROUP),
            ("time", ThreadNameSpaceType::TIME),
            ("pid", ThreadNameSpaceType::PROCESS_ID),
        ];
        let pidfd = sys::pidfd_open(pid)?;
        let mut kinds = ThreadNameSpaceType::empty();
        for (name, kind) in KINDS {
            if inode(&format!("/proc/self/ns/{name}")) != inode(&format!("/proc/{pid}/ns/{name}")) {
                kinds |= kind;
            }
        }
        let uid_map = fs::read_to_string(format!("/proc/{pid}/uid_map"))?;
        Ok(Target {
            pid,
            pidfd,
            kinds,
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
    deadline: Option<Instant>,
    timed_out: bool,
    pub(crate) exit: Option<Status>,
    announced: bool,
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

/// What only the joiner and the exec itself use.
struct ChildEnds {
    stdio: Option<[OwnedFd; 3]>,
    null_stdin: bool,
    status: OwnedFd,
    birth: OwnedFd,
    /// Where the exec waits until the monitor knows of it.
    go: OwnedFd,
    console: Option<OwnedFd>,
    window: Option<(u16, u16)>,
    tasks: Vec<File>,
    scheduling: Scheduling,
}

impl Exec {
    pub(crate) fn start(
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
                (child_birth, child_go),
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
        (birth, go): (OwnedFd, OwnedFd),
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
            let _still_roots = if uid != 0 {
                sys::chown_fd(fd.as_fd(), uid)
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
        // SAFETY: the monitor has one thread; the child ends in `join`, which does not return.
        #[allow(unsafe_code)]
        match unsafe { sys::fork_into(directory.as_ref().map(|d| d.as_fd()))? } {
            Fork::Child => join(tail, target, ends),
            Fork::Parent(pid) => self.joiner.pid = pid,
        }
        Ok(())
    }

    /// Whether a child of the monitor is this exec or its joiner.
    pub(crate) fn concerns(&mut self, pid: i32) -> bool {
        self.learn();
        pid == self.joiner.pid || Some(pid) == self.pid
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
        let scheduled = self.cpu.map_or(Ok(()), |c| sys::set_scheduler(pid, &c));
        let let_go = go.map(|go| scheduled.and_then(|()| sys::write(go.as_fd(), &[1])));
        if let Some(Err(e)) = let_go
            && sys::is_child(pid)
        {
            self.error = format!("set the scheduler: {e}").into_bytes();
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
        }
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
        if self.pid.is_none() {
            return Outcome::Failed("it was killed before it entered the container".to_owned());
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

    /// The client knows of it and waits for its end.
    pub(crate) fn announced(&self) -> bool {
        self.announced
    }

    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Kills it, with all it started, if its time is over.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline.is_some_and(|d| d <= now) {
            self.deadline = None;
            self.timed_out = true;
            let _already_gone = self.kill();
        }
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        match &self.group {
            Some(group) => group.kill(),
            None => match self.pid.unwrap_or(self.joiner.pid) {
                0 => Ok(()),
                pid => sys::kill(pid, libc::SIGKILL),
            },
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

/// The joiner's whole life.
fn join(tail: &Tail, target: &Target, ends: ChildEnds) -> ! {
    let code = match enter(tail, target, &ends).and_then(|()| become_user(tail, &ends)) {
        // SAFETY: the joiner has one thread; the child ends in `be_born`, which does not return.
        #[allow(unsafe_code)]
        Ok(()) => match unsafe { sys::fork_sibling() } {
            Ok(Fork::Child) => be_born(tail, &ends),
            Ok(Fork::Parent(pid)) => {
                let _monitor_gone = sys::write(ends.birth.as_fd(), &pid.to_ne_bytes());
                0
            }
            Err(e) => say(&ends, &format!("clone into the container: {e}")),
        },
        Err(text) => say(&ends, &text),
    };
    sys::exit_now(code)
}

fn say(ends: &ChildEnds, text: &str) -> i32 {
    let _nobody_listens = sys::write(ends.status.as_fd(), text.as_bytes());
    127
}

fn become_user(tail: &Tail, ends: &ChildEnds) -> Result<(), String> {
    let mut keep = [&ends.status, &ends.birth, &ends.go].map(|fd| fd.as_raw_fd());
    // SAFETY: these are all that is used from here on, up to `exit_now`.
    #[allow(unsafe_code)]
    unsafe { tail.become_user(&mut keep) }.map_err(|e| tail.describe(&e))
}

/// The exec itself, from its birth to its program.
fn be_born(tail: &Tail, ends: &ChildEnds) -> ! {
    let mut keep = [ends.status.as_raw_fd(), ends.go.as_raw_fd()];
    // SAFETY: only the two are used, and `exit_now` follows.
    #[allow(unsafe_code)]
    unsafe {
        sys::close_all_but(&mut keep);
    }
    match sys::read(ends.go.as_fd(), &mut [0]) {
        Ok(1) => {}
        _ => sys::exit_now(127),
    }
    let session = sys::setsid().and_then(|()| match ends.console {
        Some(_) => sys::take_terminal(io::stdin().as_fd()),
        None => Ok(()),
    });
    let error = match session {
        Ok(()) => tail.describe(&tail.execute()),
        Err(e) => format!("make a session: {e}"),
    };
    sys::exit_now(say(ends, &error))
}

/// Into the container's cgroups and all its namespaces but that of pids, into which the next child is born.
fn enter(tail: &Tail, target: &Target, ends: &ChildEnds) -> Result<(), String> {
    let at = |step: &'static str| move |e: io::Error| format!("{step}: {e}");
    sys::default_signals();
    for mut tasks in &ends.tasks {
        tasks
            .write_all(b"0")
            .map_err(at("join the container's cgroups"))?;
    }
    ends.scheduling
        .apply_inherited()
        .map_err(|(step, e)| format!("{step}: {e}"))?;
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
    sys::own_session_keyring().map_err(at("make a session keyring"))?;
    if let Some(stdio) = &ends.stdio {
        for (fd, number) in stdio.iter().zip(0..) {
            sys::dup_to(fd.as_raw_fd(), number).map_err(at("set stdio"))?;
        }
    }
    let mut keep = vec![
        target.pidfd.as_raw_fd(),
        ends.status.as_raw_fd(),
        ends.birth.as_raw_fd(),
        ends.go.as_raw_fd(),
    ];
    keep.extend(ends.console.as_ref().map(|c| c.as_raw_fd()));
    // SAFETY: this child uses these only, and ends by `exit_now`: no destructor runs.
    #[allow(unsafe_code)]
    unsafe {
        sys::close_all_but(&mut keep);
    }
    if !target.kinds.is_empty() {
        sys::join_namespaces(target.pidfd.as_fd(), target.kinds)
            .map_err(at("enter the container's namespaces"))?;
    }
    if let Some(console) = &ends.console {
        return open_terminal(console, ends.window).map_err(at("open a terminal"));
    }
    if ends.null_stdin {
        null_stdin();
    }
    Ok(())
}

/// Its master goes to the monitor, the other side is stdio.
fn open_terminal(console: &OwnedFd, window: Option<(u16, u16)>) -> io::Result<()> {
    let (master, slave) = sys::open_pty()?;
    if let Some((columns, rows)) = window {
        sys::set_window(master.as_fd(), columns, rows)?;
    }
    sys::send(console.as_fd(), b"pty", &[master.as_fd()])?;
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
        && sys::stat_fd(null.as_fd()).is_ok_and(|(_, device)| device == Some(DEV_NULL))
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
