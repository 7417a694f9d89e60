//! Builds one container by libcontainer, at StartContainer (CreateContainer starts no process), and
//! exits. Only this program uses libcontainer.
//!
//! The monitor spawns it in the container's directory, with the descriptors of
//! `cairn_monitor::report`. Init becomes its sibling: a child of the monitor from birth. It always
//! has one thread: libcontainer forks by raw `clone3` and runs allocating code in the child.
//!
//! `cairn-create --hooks <point> <pid>` instead runs a container's poststart or poststop OCI hooks.
//!
//! Order: join the container's v1 cgroups (by writing `0` to `tasks`, before any fork) → steps that
//! libcontainer lacks, and a mount namespace with little of the host (`adjust.rs`, `place.rs`) →
//! libcontainer, which makes namespaces and mounts in an empty root → in its init, the container's
//! root of these mounts (`root.rs`) → the same tail as in every exec (`init.rs`); with a joined PID
//! namespace (`join.rs`), in a process that is born into it (`birth.rs`).

mod adjust;
mod birth;
mod cgroup_view;
mod devices;
mod hooks;
mod host_proc;
mod idmap;
mod inherited;
mod init;
mod join;
mod mount_option;
mod place;
mod profile;
mod reports;
mod root;
mod start_hooks;
mod strip;

use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::rc::Rc;

use cairn_monitor::cgroup::Cgroups;
use cairn_monitor::process::Process;
use cairn_monitor::record::{CONFIG, LAUNCH, Launch, SCHEDULING, SECCOMP};
use cairn_monitor::report::{CONSOLE, Report, STATE};
use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::tail::{self, Tail};
use cairn_monitor::{filter::Filter, from_spec, own_file, sys};
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use oci_spec::runtime::{LinuxNamespaceType, Spec};

use crate::adjust::{DIRECTORY, Tree};
use crate::birth::Birth;
use crate::hooks::Early;
use crate::host_proc::HostProc;
use crate::init::{HostHooks, Init, Ready};
use crate::strip::STAGE;

fn main() -> std::process::ExitCode {
    // A container that sees us in its pid namespace may execute our image (`/proc/<pid>/exe`),
    // which must have no effect. Only the monitor passes the report socket.
    if std::process::id() == 1 || !reports::has_socket() {
        eprintln!("cairn-create: for cairn-monitor only");
        return std::process::ExitCode::FAILURE;
    }
    // Our forks enter a pod's user namespace with the host's root (`idmap.rs`).
    if let Err(e) = sys::forbid_dumps() {
        eprintln!("cairn-create: forbid dumps: {e}");
        return std::process::ExitCode::FAILURE;
    }
    reports::install();
    let mut args = std::env::args().skip(1);
    let option = args.next();
    if option.as_deref() == Some("--hooks") {
        hooks::lower_protection();
        let point = args.next().unwrap_or_default();
        let pid = args.next().and_then(|p| p.parse().ok()).unwrap_or(0);
        // The monitor ignores why they failed.
        let _ = read_inputs().and_then(|(launch, spec)| hooks::run(&launch, &spec, &point, pid));
        reports::send(&Report::Hooked);
        // Their processes end with the container: this one, by which they are found, stays.
        sys::reap_all();
        return std::process::ExitCode::SUCCESS;
    }
    let report = match create() {
        Ok(pid) => Report::Created(pid),
        Err(text) => Report::Failed(text),
    };
    reports::send(&report);
    // Without unwinding: open descriptors belong to init, or end with this process.
    sys::exit_now(0)
}

fn read_inputs() -> Result<(Launch, Spec), String> {
    let launch = own_file::read(LAUNCH).map_err(|e| format!("read {LAUNCH}: {e}"))?;
    let launch = Launch::decode(&launch).map_err(|e| e.to_string())?;
    let config = own_file::read(CONFIG).map_err(|e| format!("read {CONFIG}: {e}"))?;
    let spec = serde_json::from_slice(&config).map_err(|e| format!("parse {CONFIG}: {e}"))?;
    Ok((launch, spec))
}

fn create() -> Result<i32, String> {
    // The daemon's must not narrow what is made in the container; the tail sets the container's.
    sys::umask(0o022);
    let (launch, spec) = read_inputs()?;
    let mut process = from_spec::process(&spec)?;
    let filter = compile_filter(&spec, &launch)?;
    let scheduling = save_scheduling(&spec)?;
    hooks::save_names(&spec)?;
    Cgroups::new(&launch.cgroups)
        .join()
        .map_err(|e| format!("join the container's cgroups: {e}"))?;
    sys::set_groups(&[]).map_err(|e| format!("drop our groups: {e}"))?;
    // As the host's root, whose quota counts here: a mapped user has only 200 keys.
    tail::own_session_keyring(&process).map_err(|e| format!("make a session keyring: {e}"))?;
    tail::raise_limits(&process).map_err(|e| format!("raise resource limits: {e}"))?;
    if !launch.tty {
        give_stdio(&spec, &process);
    }
    let mut plan = adjust::plan(spec, &launch.cgroups)?;
    reports::name(&plan);
    if !process.env.iter().any(|v| v.starts_with(b"HOME=")) {
        process.env.push(place::home(&plan.rootfs, process.uid));
    }
    let directory = std::env::current_dir().map_err(|e| format!("find our directory: {e}"))?;
    let state = start_hooks::state(&plan.spec, &launch, &directory);
    let hooks = start_hooks::take(&mut plan.spec, &state, &process, filter.as_ref())?;
    let early = match Early::take(&mut plan.spec, &launch)? {
        Some(hooks) => Some(HostHooks {
            hooks,
            mounts: place::host_mounts()?,
            rootfs: plan.rootfs.clone(),
        }),
        None => None,
    };
    place::open_namespaces(&mut plan.spec)?;
    let procs = plan.trees.iter().filter(|t| matches!(t, Tree::Proc(_)));
    let procs = procs.count();
    let joined = plan.join.as_deref();
    let joined = joined.map(|path| join::take(path, procs)).transpose()?;
    let (namespace, procfs) = joined.map_or((None, Vec::new()), |j| (Some(j.namespace), j.procfs));
    let trees = place::move_in(&inherited::take_mounts(), &plan, procfs)?;
    let birth = namespace.map(|namespace| Birth::new(namespace, launch.tty));
    let tail = Tail::new(process, filter.as_ref())?;
    write_bundle(&plan.spec)?;
    let init = Init(Rc::new(Ready {
        tail,
        scheduling,
        hooks,
        settings: plan.settings,
        places: plan.places,
        trees: plan.trees.into_iter().zip(trees).collect(),
        early,
        birth,
        proc: HostProc::open()?,
        sysctls: plan.sysctls,
    }));
    let directory = Path::new(STAGE).join(DIRECTORY);
    build(&launch, &directory, init)
}

/// Compiles the filter once per profile, and puts it in the container's directory for its execs.
#[expect(clippy::disallowed_methods, reason = "our directory")]
fn compile_filter(spec: &Spec, launch: &Launch) -> Result<Option<Filter>, String> {
    let Some(profile) = spec.linux().as_ref().and_then(|l| l.seccomp().as_ref()) else {
        return Ok(None);
    };
    let (filter, cached) = profile::filter(profile, Path::new(&launch.seccomp_cache))?;
    let linked = fs::hard_link(&cached, SECCOMP).or_else(|_| fs::write(SECCOMP, filter.encode()));
    linked.map_err(|e| format!("save the seccomp filter: {e}"))?;
    Ok(Some(filter))
}

/// Writes the scheduling to the container's directory for its execs.
#[expect(clippy::disallowed_methods, reason = "our directory")]
fn save_scheduling(spec: &Spec) -> Result<Scheduling, String> {
    let scheduling = from_spec::scheduling(spec)?;
    if scheduling != Scheduling::default() {
        fs::write(SCHEDULING, scheduling.encode())
            .map_err(|e| format!("write {SCHEDULING}: {e}"))?;
    }
    Ok(scheduling)
}

/// In a user namespace only the host's root can give the pipes to the user; else `tail.rs` does.
fn give_stdio(spec: &Spec, process: &Process) {
    let Some(linux) = spec.linux() else { return };
    let has_user = linux
        .namespaces()
        .iter()
        .flatten()
        .any(|n| n.typ() == LinuxNamespaceType::User);
    let maps = linux.uid_mappings().iter().flatten().filter(|_| has_user);
    let mapped = maps.filter_map(|m| {
        let offset = process.uid.checked_sub(m.container_id())?;
        (offset < m.size()).then(|| m.host_id().checked_add(offset))?
    });
    if let Some(uid) = mapped.into_iter().next() {
        for fd in inherited::stdio() {
            if sys::stat_fd(fd).is_ok_and(|(_, device)| device.is_none()) {
                let _ = sys::chown_fd(fd, uid); // on failure root stays the owner
            }
        }
    }
}

fn bundle() -> String {
    format!("{STATE}/bundle")
}

#[expect(clippy::disallowed_methods, reason = "our directory")]
fn write_bundle(spec: &Spec) -> Result<(), String> {
    let at = |e: std::io::Error| format!("write the bundle: {e}");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(bundle())
        .map_err(at)?;
    let bytes = serde_json::to_vec(spec).map_err(|e| format!("write the bundle: {e}"))?;
    let path = format!("{}/config.json", bundle());
    sys::create_private(Path::new(&path))
        .and_then(|mut file| file.write_all(&bytes))
        .map_err(at)
}

fn build(launch: &Launch, directory: &Path, init: Init) -> Result<i32, String> {
    let mut builder = ContainerBuilder::new(launch.id.clone(), SyscallType::default())
        .with_root_path(directory.join(STATE))
        .map_err(|e| reports::chain(&e))?
        .validate_id()
        .map_err(|e| reports::chain(&e))?
        .with_executor(init);
    if launch.tty {
        builder = builder.with_console_socket(Some(directory.join(CONSOLE)));
    } else {
        let [stdin, stdout, stderr] = inherited::take_stdio();
        builder = builder
            .with_stdin(stdin)
            .with_stdout(stdout)
            .with_stderr(stderr);
    }
    let container = builder
        .as_init(directory.join(bundle()))
        .with_systemd(false)
        .with_detach(true)
        .as_sibling(true)
        .build()
        .map_err(|e| reports::chain(&e))?;
    let pid = container.pid().ok_or("libcontainer reported no pid")?;
    Ok(pid.as_raw())
}
