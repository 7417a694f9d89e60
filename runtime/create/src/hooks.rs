//! OCI hooks that libcontainer's create does not run for cairn: before the start (prestart,
//! createRuntime, createContainer), and after it (poststart, poststop).
//!
//! Hooks before the start run once the root is complete; only then it becomes read-only. prestart and createRuntime hooks run in a
//! process that stays in the host's namespaces; init asks it. createContainer hooks run in the
//! container's namespaces, while the root of the mount namespace is a copy of the host's mounts with
//! the container's root at its path on the host.

#![expect(
    clippy::disallowed_methods,
    reason = "files of the container's directory"
)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use cairn_monitor::record::{HOOK_PIDS, HOOKS, Launch, Pid};
use cairn_monitor::report::REPORT_FD;
use cairn_monitor::stat;
use cairn_monitor::sys::{self, Fork};
use libcontainer::container::{ContainerStatus, State};
use libcontainer::hooks::run_hooks;
use oci_spec::runtime::{Hook, Spec};

use crate::reports;

/// The hooks before the start, in their order.
pub(crate) struct Early {
    /// The socket of the process that runs prestart and createRuntime hooks.
    runtime: Option<OwnedFd>,
    create: Vec<Named>,
    state: State,
}

/// A hook and the name of its point.
type Named = (&'static str, Hook);

impl Early {
    /// Takes the hooks out of the spec. This process is in the host's namespaces and in the
    /// container's directory. `None` without hooks.
    pub(crate) fn take(spec: &mut Spec, launch: &Launch) -> Result<Option<Early>, String> {
        let Some(hooks) = spec.hooks().clone() else {
            return Ok(None);
        };
        let named = |point, hooks: &Option<Vec<Hook>>| {
            let hooks = hooks.iter().flatten().cloned();
            hooks.map(move |hook| (point, hook)).collect::<Vec<Named>>()
        };
        let mut runtime = named("prestart", hooks.prestart());
        runtime.extend(named("createRuntime", hooks.create_runtime()));
        let create = named("createContainer", hooks.create_container());
        let state = state(launch, spec, ContainerStatus::Creating, None)?;
        spec.set_hooks(None);
        if runtime.is_empty() && create.is_empty() {
            return Ok(None);
        }
        let at = |e: io::Error| format!("start a process for the hooks: {e}");
        let has_runtime = !runtime.is_empty();
        let socket = has_runtime.then(|| start(&runtime, &state)).transpose();
        Ok(Some(Early {
            runtime: socket.map_err(at)?,
            create,
            state,
        }))
    }

    /// Runs them up to the first failure; called by init.
    pub(crate) fn run(&self) -> Result<(), String> {
        let at = |e: io::Error| format!("run the hooks: {e}");
        if let Some(runtime) = &self.runtime {
            sys::write(runtime.as_fd(), &[0]).map_err(at)?;
            read_result(runtime)?;
        }
        if self.create.is_empty() {
            return Ok(());
        }
        let (result, theirs) = sys::pipe().map_err(at)?;
        // A process of its own: libcontainer uses threads, and hooks must not inherit descriptors.
        let child = match sys::fork_into(None).map_err(at)? {
            Fork::Parent(pid) => pid,
            Fork::Child => answer(&theirs, &self.create, &self.state),
        };
        drop(theirs);
        let done = read_result(&result);
        sys::reap_child(child).map_err(at)?;
        done
    }
}

/// Starts the process that waits for init, and then runs the hooks with init's pid.
fn start(hooks: &[Named], state: &State) -> io::Result<OwnedFd> {
    let (ours, theirs) = sys::seqpacket_pair()?;
    sys::pass_pids(theirs.as_fd())?;
    match sys::fork_into(None)? {
        Fork::Parent(_) => Ok(ours),
        Fork::Child => {
            // SAFETY: only these two are used from here on, and `exit_now` follows.
            #[allow(unsafe_code)]
            unsafe {
                sys::close_all_but(&mut [theirs.as_raw_fd(), REPORT_FD]);
            }
            // Without a pid, init has ended.
            if let Ok(Some(pid)) = sys::receive_pid(theirs.as_fd()) {
                let mut state = state.clone();
                state.pid = Some(pid);
                answer(&theirs, hooks, &state);
            }
            sys::exit_now(0)
        }
    }
}

/// Runs the hooks and ends this process; sends nothing, or the error.
fn answer(to: &OwnedFd, hooks: &[Named], state: &State) -> ! {
    // SAFETY: only these two are used from here on, and `exit_now` follows.
    #[allow(unsafe_code)]
    unsafe {
        sys::close_all_but(&mut [to.as_raw_fd(), REPORT_FD]);
    }
    let done = sys::cloexec_from(3).map_err(|e| format!("close descriptors: {e}"));
    let done = done.and_then(|()| run_each(hooks, state));
    let text = done.err().unwrap_or_default();
    let _ = sys::write(to.as_fd(), &[b"=", text.as_bytes()].concat()); // init may be dead
    sys::exit_now(0)
}

fn read_result(from: &OwnedFd) -> Result<(), String> {
    let mut answer = [0; 4096];
    match sys::read(from.as_fd(), &mut answer) {
        Ok(0) => Err("the process that runs the hooks was killed".to_owned()),
        Ok(1) => Ok(()),
        Ok(n) => Err(String::from_utf8_lossy(&answer[1..n]).into_owned()),
        Err(e) => Err(format!("run the hooks: {e}")),
    }
}

fn run_each(hooks: &[Named], state: &State) -> Result<(), String> {
    hooks.iter().try_for_each(|(point, hook)| {
        // Without one, libcontainer would choose an environment.
        let mut hook = hook.clone();
        hook.set_env(Some(hook.env().clone().unwrap_or_default()));
        let path = hook.path().display().to_string();
        run_hooks(Some(&vec![hook]), Some(state), None, None, None)
            .map_err(|e| format!("{point} hook {path}: {}", reports::chain(&e)))
    })
}

fn state(
    launch: &Launch,
    spec: &Spec,
    status: ContainerStatus,
    pid: Option<i32>,
) -> Result<State, String> {
    let bundle = std::env::current_dir().map_err(|e| format!("find our directory: {e}"))?;
    let mut state = State::new(&launch.id, status, pid, bundle);
    state.annotations = spec.annotations().clone();
    Ok(state)
}

/// Ends the protection from the OOM killer that hooks would inherit from the monitor.
pub(crate) fn lower_protection() {
    let _ = fs::write("/proc/self/oom_score_adj", "0"); // raising it is always allowed
}

/// Lists the hooks to run later, for the monitor.
pub(crate) fn save_names(spec: &Spec) -> Result<(), String> {
    let names: String = ["poststart", "poststop"]
        .into_iter()
        .filter(|point| hooks(spec, point).is_some_and(|h| !h.is_empty()))
        .flat_map(|point| [point, "\n"])
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    fs::write(HOOKS, names).map_err(|e| format!("write {HOOKS}: {e}"))
}

/// Runs the hooks of one point after the start, up to the first failure. All their processes stay
/// below this one.
pub(crate) fn run(launch: &Launch, spec: &Spec, point: &str, pid: i32) -> Result<(), String> {
    sys::become_subreaper().map_err(|e| format!("adopt the hooks' processes: {e}"))?;
    // Not recorded, it keeps dying with the monitor; its hooks' processes may be left then.
    if record(point).is_ok() {
        let _ = sys::outlive_parent(); // the same
    }
    sys::cloexec_from(3).map_err(|e| format!("close descriptors: {e}"))?;
    let status = if point == "poststart" {
        ContainerStatus::Running
    } else {
        ContainerStatus::Stopped
    };
    let pid = Some(pid).filter(|_| point == "poststart");
    let state = state(launch, spec, status, pid)?;
    run_hooks(hooks(spec, point), Some(&state), None, None, None).map_err(|e| reports::chain(&e))
}

/// Records this process, so that it can be ended without the monitor.
fn record(point: &str) -> io::Result<()> {
    let (_, file) = HOOK_PIDS
        .into_iter()
        .find(|(of, _)| *of == point)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let pid = std::process::id().cast_signed();
    let own = Pid {
        pid,
        start_time: stat::start_time(pid)?,
        boot_id: stat::boot_id()?,
        monitor: std::os::unix::process::parent_id().cast_signed(),
    };
    let temporary = format!("{file}.tmp");
    fs::write(&temporary, own.to_text())?;
    fs::rename(temporary, file)
}

fn hooks<'a>(spec: &'a Spec, point: &str) -> Option<&'a Vec<Hook>> {
    let hooks = spec.hooks().as_ref()?;
    match point {
        "poststart" => hooks.poststart().as_ref(),
        _ => hooks.poststop().as_ref(),
    }
}
