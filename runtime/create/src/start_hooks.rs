//! startContainer hooks: run by init inside the container, after the start signal.
//!
//! libcontainer would run these files of the image with every privilege of this helper. Here the
//! tail confines each like the container's own program. Their processes are made first and wait:
//! init drops its own privileges before the first hook runs, since it is process 1 in a PID
//! namespace that a hook with SYS_PTRACE can inspect.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use cairn_monitor::filter::Filter;
use cairn_monitor::from_spec;
use cairn_monitor::process::Process;
use cairn_monitor::record::Launch;
use cairn_monitor::sys::{self, Fork};
use cairn_monitor::tail::Tail;
use oci_spec::runtime::{Hook, Spec};
use serde_json::{Value, json};

use crate::birth::{Birth, born_into};

pub(crate) struct StartHook {
    path: String,
    tail: Tail,
    timeout: Option<Duration>,
    /// Without the pid, which init adds.
    state: Value,
}

/// The state of the container in `directory`, for hooks.
pub(crate) fn state(spec: &Spec, launch: &Launch, directory: &Path) -> Value {
    json!({
        "ociVersion": spec.version(),
        "id": launch.id,
        "status": "created",
        "bundle": directory,
        "annotations": spec.annotations().clone().unwrap_or_default(),
    })
}

/// Takes the hooks out of the spec. `process` is the container's.
pub(crate) fn take(
    spec: &mut Spec,
    state: &Value,
    process: &Process,
    filter: Option<&Filter>,
) -> Result<Vec<StartHook>, String> {
    let Some(hooks) = spec.hooks_mut() else {
        return Ok(Vec::new());
    };
    let taken = hooks.start_container().clone().unwrap_or_default();
    hooks.set_start_container(None);
    taken
        .iter()
        .map(|hook| prepare(hook, state, process, filter))
        .collect()
}

fn prepare(
    hook: &Hook,
    state: &Value,
    process: &Process,
    filter: Option<&Filter>,
) -> Result<StartHook, String> {
    let path = hook.path().display().to_string();
    let mut argv = from_spec::words(hook.args());
    if argv.is_empty() {
        argv.push(path.clone().into_bytes());
    }
    let process = Process {
        argv,
        env: from_spec::words(hook.env()),
        cwd: b"/".to_vec(),
        ..process.clone()
    };
    let tail = Tail::of_program(path.as_bytes(), process, filter)
        .map_err(|e| format!("startContainer hook {path}: {e}"))?;
    let seconds = hook.timeout().and_then(|t| u64::try_from(t).ok());
    Ok(StartHook {
        path,
        tail,
        timeout: seconds.map(Duration::from_secs),
        state: state.clone(),
    })
}

pub(crate) struct Waiting<'a> {
    hook: &'a StartHook,
    child: i32,
    ended: OwnedFd,
    go: OwnedFd,
    /// The read end of `go`, kept open so that a write to an ended hook does not raise SIGPIPE.
    waits: OwnedFd,
}

impl StartHook {
    /// Makes its process, in the PID namespace of a born init, or else in ours.
    pub(crate) fn begin(&self, inside: Option<&Birth>) -> Result<Waiting<'_>, String> {
        let at = |e: io::Error| format!("startContainer hook {}: {e}", self.path);
        let mut state = self.state.clone();
        let init = inside.and_then(Birth::pid);
        state["pid"] = init.unwrap_or(std::process::id().cast_signed()).into();
        let stdin = sys::memory_file(state.to_string().as_bytes()).map_err(at)?;
        let (report_read, report) = sys::pipe().map_err(at)?;
        let (waits, go) = sys::pipe().map_err(at)?;
        let mut child = match sys::fork_into(None).map_err(at)? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                let ready = sys::dup_to(stdin.as_raw_fd(), 0).and_then(|()| sys::dup_to(2, 1));
                if ready.is_ok() {
                    self.become_hook(inside, &report, &waits);
                }
                sys::exit_now(127)
            }
        };
        drop(report);
        // A pid comes from a process with the container's rights only; a text is an error.
        let mut answer = [0; 512];
        let pid = match sys::read(report_read.as_fd(), &mut answer).map_err(at)? {
            4 => i32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]]),
            0 => return Err(at(io::Error::other("ended before it could run"))),
            n => return Err(at(io::Error::other(String::from_utf8_lossy(&answer[..n])))),
        };
        // Other processes of the namespace may have written the pid.
        if inside.is_some() && sys::is_child(pid) {
            child = pid;
        }
        Ok(Waiting {
            hook: self,
            child,
            ended: sys::pidfd_open(child).map_err(at)?,
            go,
            waits,
        })
    }

    fn become_hook(&self, inside: Option<&Birth>, report: &OwnedFd, waits: &OwnedFd) {
        let mut keep = [report.as_raw_fd(), waits.as_raw_fd()];
        let send = |bytes: &[u8]| sys::write(report.as_fd(), bytes);
        match inside {
            // SAFETY: only the two are used from here on, and the caller ends.
            #[allow(unsafe_code)]
            None => match unsafe { self.tail.become_user(&mut keep) } {
                Ok(()) => drop(send(&std::process::id().to_ne_bytes())),
                Err(e) => return drop(send(self.tail.describe(&e).as_bytes())),
            },
            Some(birth) => match born_into(birth.namespace(), &self.tail, &mut keep) {
                Ok(Fork::Parent(pid)) => return drop(send(&pid.to_ne_bytes())),
                Ok(Fork::Child) => {}
                Err(text) => return drop(send(text.as_bytes())),
            },
        }
        // SAFETY: only this one is used from here on, and the caller ends.
        #[allow(unsafe_code)]
        unsafe {
            sys::close_all_but(&mut [waits.as_raw_fd()]);
        }
        if matches!(sys::read(waits.as_fd(), &mut [0]), Ok(1)) {
            self.tail.execute();
        }
    }
}

impl Waiting<'_> {
    /// The descriptors that must stay open until [`Waiting::run`].
    pub(crate) fn keep(&self) -> [RawFd; 3] {
        [&self.ended, &self.go, &self.waits].map(AsRawFd::as_raw_fd)
    }

    /// Runs the hook to its end; anything but success is an error. Uses few system calls: the
    /// container's seccomp filter may apply.
    pub(crate) fn run(self) -> Result<(), String> {
        let path = &self.hook.path;
        let at = |e: io::Error| format!("startContainer hook {path}: {e}");
        sys::write(self.go.as_fd(), &[1]).map_err(at)?;
        let why = match wait(self.child, &self.ended, self.hook.timeout).map_err(at)? {
            Some(0) => return Ok(()),
            Some(127) => "cannot be executed".to_owned(),
            Some(code) => format!("exit code {code}"),
            None => "timed out".to_owned(),
        };
        Err(format!("startContainer hook {path}: {why}"))
    }
}

/// The child's exit code; `None` if its time ended, and it was killed.
fn wait(child: i32, ended: &OwnedFd, timeout: Option<Duration>) -> io::Result<Option<i32>> {
    let deadline = timeout.map(|t| Instant::now() + t);
    let mut in_time = true;
    loop {
        let left = match deadline {
            Some(deadline) if in_time => {
                let left = deadline.saturating_duration_since(Instant::now());
                i32::try_from(left.as_millis().max(1)).unwrap_or(i32::MAX)
            }
            _ => -1,
        };
        if sys::poll_one(ended.as_fd(), libc::POLLIN, left)? != 0 {
            let status = sys::reap_child(child)?;
            return Ok(in_time.then_some(status.code));
        }
        if in_time && deadline.is_some_and(|d| d <= Instant::now()) {
            in_time = false;
            sys::kill(child, libc::SIGKILL)?;
        }
    }
}
