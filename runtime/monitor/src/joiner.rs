//! The process that creates an exec: single-threaded, no destructors, opens nothing of the host.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::sys::{self, Fork};
use cairn_monitor::tail::{self, Tail};

use crate::target::Target;

/// Descriptors that only the joiner and the exec use.
pub(crate) struct ChildEnds {
    pub(crate) stdio: Option<[OwnedFd; 3]>,
    pub(crate) null_stdin: bool,
    pub(crate) status: OwnedFd,
    pub(crate) birth: OwnedFd,
    /// The exec waits here until the monitor knows its pid.
    pub(crate) go: OwnedFd,
    pub(crate) console: Option<OwnedFd>,
    pub(crate) window: Option<(u16, u16)>,
    pub(crate) tasks: Vec<File>,
    pub(crate) scheduling: Scheduling,
}

pub(crate) fn join(tail: &Tail, target: &Target, ends: ChildEnds) -> ! {
    let code = match enter(tail, target, &ends).and_then(|()| become_user(tail, &ends)) {
        // SAFETY: the joiner has one thread; the child ends in `run_exec`, which does not return.
        #[allow(unsafe_code)]
        Ok(()) => match unsafe { sys::fork_sibling() } {
            Ok(Fork::Child) => run_exec(tail, &ends),
            Ok(Fork::Parent(pid)) => {
                // A failed write: the monitor is dead.
                let _ = sys::write(ends.birth.as_fd(), &pid.to_ne_bytes());
                0
            }
            Err(e) => report_failure(&ends, &format!("clone into the container: {e}")),
        },
        Err(text) => report_failure(&ends, &text),
    };
    sys::exit_now(code)
}

fn report_failure(ends: &ChildEnds, text: &str) -> i32 {
    let _ = sys::write(ends.status.as_fd(), text.as_bytes()); // the monitor may be dead
    127
}

fn become_user(tail: &Tail, ends: &ChildEnds) -> Result<(), String> {
    let mut keep = [&ends.status, &ends.birth, &ends.go].map(|fd| fd.as_raw_fd());
    // SAFETY: these are all that is used from here on, up to `exit_now`.
    #[allow(unsafe_code)]
    unsafe { tail.become_user(&mut keep) }.map_err(|e| tail.describe(&e))
}

fn run_exec(tail: &Tail, ends: &ChildEnds) -> ! {
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
    sys::exit_now(report_failure(ends, &error))
}

/// Enters the container's cgroups and namespaces; of the pid namespace only for the next child.
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
    if let Some(label) = &process.label {
        let (file, text) = label.for_exec();
        tail::write_to_proc(&format!("/proc/self/{file}"), &text)
            .map_err(|e| format!("set the {label}: {e}"))?;
    }
    tail::raise_limits(process).map_err(at("raise resource limits"))?;
    tail::own_session_keyring(process).map_err(at("make a session keyring"))?;
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

/// Sends the master to the monitor; the other side becomes stdio.
fn open_terminal(console: &OwnedFd, window: Option<(u16, u16)>) -> io::Result<()> {
    let (master, slave) = sys::open_pty()?;
    if let Some((columns, rows)) = window {
        sys::set_window(master.as_fd(), columns, rows)?;
    }
    sys::send(console.as_fd(), b"pty", &[master.as_fd()])?;
    (0..3).try_for_each(|n| sys::dup_to(slave.as_raw_fd(), n))
}

/// Opens the container's /dev/null if it is the null device; otherwise stdin stays a closed pipe.
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
        let _ = sys::dup_to(null.as_raw_fd(), 0); // on failure the pipe stays
    }
}
