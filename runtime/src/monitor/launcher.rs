//! Starts monitors, finds them again, cleans up after them.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cairn_monitor::record::{
    CONFIG, CTL, CgroupDir, EXIT, Exit, JOIN, Join, LAUNCH, Launch, PID, Pid,
};
use cairn_monitor::report::PROGRAMS_FD;
use cairn_monitor::wire::Phase;
use futures_util::future::BoxFuture;
use rustix::fs::{Mode, OFlags};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::{Interest, unix::AsyncFd};

use super::client::{Ending, Monitor};
use super::error::{MonitorError, Why};
use super::helpers::{self, CREATE, MONITOR};
use crate::{blocking::try_blocking, detached, inherited, replace};

/// How long a killed monitor may take to be gone.
const MONITOR_GONE: Duration = Duration::from_secs(5);

/// Directories of the launcher. Both paths absolute.
#[derive(Debug, Clone)]
pub struct LauncherConfig {
    /// A directory of its own, root's alone; on tmpfs best. Gets `seccomp/`.
    pub run_dir: PathBuf,
    /// Directory of `cairn-monitor` and `cairn-create`.
    pub helpers_dir: PathBuf,
}

/// One container to make.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    pub id: String,
    /// The container's own directory; made here, removed by the caller after `delete` or a failure.
    pub dir: PathBuf,
    /// The OCI spec as JSON. `root.path` absolute, `linux.cgroupsPath` absolute. User, groups, capabilities, limits,
    /// seccomp and the rest of the process are taken from here; `linux.resources` is the caller's to apply.
    pub config: Vec<u8>,
    /// Existing directories, limits applied; init joins each.
    pub cgroups: Vec<CgroupDir>,
    pub tty: bool,
    pub stdin: bool,
    pub stdin_once: bool,
    /// CRI log, as `cairn_monitor::log_path` has it; its directory is there (CRI-254).
    pub log_path: Option<PathBuf>,
    /// Content bytes per record, CRI's default is 16384; 0: as many as the monitor keeps (1 MiB).
    pub max_log_line: u32,
    /// Whose PID namespace `config` names by its path; none for one that we know no process of.
    pub join: Option<Join>,
}

/// State that a restarted daemon finds in a container's directory.
pub enum Reattached {
    /// Started and, as far as the monitor knows, alive.
    Running(Monitor),
    /// The end is known; the monitor still waits for `delete` if there is one.
    Exited(Exit, Option<Monitor>),
    /// No monitor and no exit: it was killed, or the machine restarted, or the container never got so far. Next:
    /// [`Launcher::cleanup`].
    Lost,
}

/// What monitors are: processes of our program. The model of the tests has some of memory.
pub trait Monitors: fmt::Debug + Send + Sync {
    /// Starts the monitor of a directory, whose first connection is `socket`; its end, which is waited for in any case.
    ///
    /// # Errors
    /// The process cannot be started.
    fn spawn(&self, dir: &Path, socket: UnixStream) -> io::Result<BoxFuture<'static, ()>>;
    /// Never waits for a monitor that takes no more connections: that is `WouldBlock`.
    ///
    /// # Errors
    /// Nobody listens.
    fn connect(&self, dir: &Path) -> io::Result<UnixStream>;
    /// Kills the monitor of a directory, and waits until it is gone.
    fn end<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Kills what a monitor that is gone has left.
    fn clean<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// The program that keeps a systemd scope, as `--hold`.
    fn program(&self) -> PathBuf;
}

/// By the tree of the helpers.
#[derive(Debug)]
struct Programs(OwnedFd);

/// Starts monitors.
#[derive(Debug, Clone)]
pub struct Launcher {
    run_dir: PathBuf,
    monitors: Arc<dyn Monitors>,
}

type Result<T> = std::result::Result<T, MonitorError>;

impl Launcher {
    /// Makes the tree of the helpers. Monitors of a former daemon keep theirs.
    pub async fn new(config: LauncherConfig) -> Result<Launcher> {
        let run_dir = config.run_dir.clone();
        let programs = blocking(move || {
            make_dir(&config.run_dir.join("seccomp"))?;
            helpers::gather(&config.helpers_dir)
        });
        Ok(Self::of(run_dir, Arc::new(Programs(programs.await?))))
    }

    pub fn of(run_dir: PathBuf, monitors: Arc<dyn Monitors>) -> Launcher {
        Launcher { run_dir, monitors }
    }

    /// Monitor, `cairn-create`, init: a container whose program waits for [`Monitor::start`]. On failure the monitor
    /// undoes what it did; directory and cgroups are the caller's.
    pub async fn launch(&self, spec: LaunchSpec) -> Result<Monitor> {
        let (id, dir) = (spec.id.clone(), spec.dir.clone());
        let run_dir = self.run_dir.clone();
        blocking(move || write_files(&run_dir, spec)).await?;
        let (ours, theirs) =
            UnixStream::pair().map_err(|e| MonitorError::file("connect", &dir, e))?;
        let spawned = self.monitors.spawn(&dir, theirs);
        let ended = spawned.map_err(|e| MonitorError::file("spawn the monitor for", &dir, e))?;
        // Reaps it, whenever it ends.
        let ended = tokio::spawn(ended);
        let (monitor, _) = Monitor::connect(id, dir, ours).await?;
        match monitor.create().await {
            Ok(()) => Ok(monitor),
            Err(error) => {
                drop(monitor);
                // It cleans up and ends, now that nobody is connected.
                let _slow = tokio::time::timeout(Duration::from_secs(20), ended).await;
                Err(error)
            }
        }
    }

    /// After a daemon restart: who is there?
    pub async fn reattach(&self, id: &str, dir: &Path) -> Result<Reattached> {
        let exit = read_exit(dir)?;
        let stream = match self.monitors.connect(dir) {
            Ok(stream) => stream,
            // Somebody does, and takes no connection.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(MonitorError::file("connect to the monitor", dir, e));
            }
            // Nobody listens (any more).
            Err(_) => return Ok(exit.map_or(Reattached::Lost, |e| Reattached::Exited(e, None))),
        };
        match Monitor::connect(id.to_owned(), dir.to_owned(), stream).await {
            Ok((monitor, Phase::Running)) => Ok(Reattached::Running(monitor)),
            Ok((monitor, Phase::Exited)) => match monitor.ending() {
                Some(Ending::Exited(exit)) => Ok(Reattached::Exited(exit, Some(monitor))),
                _ => Ok(Reattached::Lost),
            },
            // Not started: it undoes itself as soon as this connection ends.
            Ok(_) => Ok(Reattached::Lost),
            Err(MonitorError::Container { why: Why::Lost, .. }) => {
                Ok(exit.map_or(Reattached::Lost, |e| Reattached::Exited(e, None)))
            }
            Err(other) => Err(other),
        }
    }

    /// Kills what is left of a container, the monitor included if it still runs: everything in the cgroups; removes
    /// sub-cgroups and state. Returns the exit if the monitor had written one. Safe to repeat, and fine where nothing
    /// was launched yet.
    pub async fn cleanup(&self, dir: &Path) -> Result<Option<Exit>> {
        self.end_monitor(dir).await?;
        if was_launched(dir) {
            let cleaned = self.monitors.clean(dir).await;
            cleaned.map_err(|e| MonitorError::file("clean up by the monitor", dir, e))?;
        }
        read_exit(dir)
    }

    /// Kills the monitor of a directory, whatever it is at, and waits until it is gone: one that does not answer, or
    /// that nobody needs any more. Where nobody listens there is none.
    pub async fn end_monitor(&self, dir: &Path) -> Result<()> {
        let ended = self.monitors.end(dir).await;
        ended.map_err(|cause| MonitorError::file("end the monitor", dir, cause))
    }

    /// The cgroups that a directory's monitor was launched with.
    #[expect(
        clippy::disallowed_methods,
        reason = "our own state directory, which is in memory"
    )]
    pub fn recorded_cgroups(dir: &Path) -> Vec<CgroupDir> {
        let launch = fs::read(dir.join(LAUNCH)).ok();
        let launch = launch.and_then(|bytes| Launch::decode(&bytes).ok());
        launch.map_or_else(Vec::new, |launch| launch.cgroups)
    }

    /// Init and monitor as last recorded in a container's directory.
    #[expect(
        clippy::disallowed_methods,
        reason = "our own state directory, which is in memory"
    )]
    pub fn recorded(dir: &Path) -> Option<Pid> {
        Pid::from_text(&fs::read_to_string(dir.join(PID)).ok()?).ok()
    }

    /// The program that keeps a systemd scope, as `--hold`; for as long as this launcher is there.
    pub fn hold(&self) -> PathBuf {
        self.monitors.program()
    }
}

impl Programs {
    fn monitor(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.program());
        command
            .arg0(MONITOR)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

impl Monitors for Programs {
    fn spawn(&self, dir: &Path, socket: UnixStream) -> io::Result<BoxFuture<'static, ()>> {
        let mut child = self
            .monitor()
            .arg(dir)
            .stdin(OwnedFd::from(socket))
            .stdout(self.0.try_clone()?)
            .stderr(detached::bare().and_then(|b| b.try_clone_to_owned())?)
            .spawn()?;
        // Nothing is made before it is asked to; what it makes inherits this.
        child.id().into_iter().for_each(inherited::give_back);
        Ok(Box::pin(async move { drop(child.wait().await) }))
    }

    fn connect(&self, dir: &Path) -> io::Result<UnixStream> {
        connect_ctl(dir)
    }

    fn end<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(end(dir))
    }

    fn clean<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let status = self.monitor().arg("--cleanup").arg(dir).status().await?;
            if status.success() {
                Ok(())
            } else {
                Err(io::Error::other(format!(
                    "processes or cgroups are left ({status})"
                )))
            }
        })
    }

    /// By descriptor, which the child still has when its program is looked up.
    fn program(&self) -> PathBuf {
        format!("/proc/self/fd/{}/{MONITOR}", self.0.as_raw_fd()).into()
    }
}

async fn end(dir: &Path) -> io::Result<()> {
    let listener = match connect_ctl(dir) {
        Ok(stream) => rustix::net::sockopt::socket_peercred(&stream).map(|peer| peer.pid)?,
        // More connections wait to be taken than it ever takes: it is stuck.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => match recorded_monitor(dir) {
            Some(pid) => pid,
            None => return Err(e),
        },
        Err(_) => return Ok(()),
    };
    let pidfd = match pidfd_open(listener, PidfdFlags::NONBLOCK) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        other => other?,
    };
    // Whoever listens still lives, so the number was its own when it was opened.
    if let Err(e) = connect_ctl(dir)
        && e.kind() != io::ErrorKind::WouldBlock
    {
        return Ok(());
    }
    match pidfd_send_signal(&pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(e) => return Err(e.into()),
    }
    // Deprecated for descriptor types that can close or change under it; an OwnedFd cannot.
    #[expect(deprecated)]
    let pidfd = AsyncFd::with_interest(pidfd, Interest::READABLE)?;
    if tokio::time::timeout(MONITOR_GONE, pidfd.readable())
        .await
        .is_err()
    {
        let pid = listener.as_raw_nonzero();
        let seconds = MONITOR_GONE.as_secs();
        return Err(io::Error::other(format!(
            "pid {pid} is still there {seconds} s after SIGKILL"
        )));
    }
    Ok(())
}

fn write_files(run_dir: &Path, spec: LaunchSpec) -> Result<()> {
    let LaunchSpec {
        id,
        dir,
        config,
        cgroups,
        tty,
        stdin,
        stdin_once,
        log_path,
        max_log_line,
        join,
    } = spec;
    make_dir(&dir)?;
    let log_path = log_path
        .map(|path| path.into_os_string().into_string())
        .transpose()
        .map_err(|p| {
            MonitorError::file("use the log path", p, io::Error::other("it is not UTF-8"))
        })?;
    let launch = Launch {
        id,
        create: format!("/proc/self/fd/{PROGRAMS_FD}/{CREATE}"),
        cgroups,
        tty,
        stdin,
        stdin_once,
        log_path,
        max_log_line,
        seccomp_cache: run_dir.join("seccomp").to_string_lossy().into_owned(),
    };
    write_file(&dir.join(CONFIG), &config)?;
    if let Some(join) = join {
        write_file(&dir.join(JOIN), join.to_text().as_bytes())?;
    }
    write_file(&dir.join(LAUNCH), &launch.encode())
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match try_blocking(f).await {
        Ok(result) => result,
        Err(e) => Err(MonitorError::Helpers(e.to_string())),
    }
}

fn make_dir(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| MonitorError::file("make", path, e))
}

/// Not flushed, since what it describes does not outlive the kernel either.
fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    replace::file(path, bytes).map_err(|e| MonitorError::file("write", path, e))
}

/// A monitor is spawned once its launch file is there. Earlier versions did not write it whole at once: an empty one is
/// what a crash had left before anything was launched.
#[expect(
    clippy::disallowed_methods,
    reason = "our own state directory, which is in memory"
)]
fn was_launched(dir: &Path) -> bool {
    fs::metadata(dir.join(LAUNCH)).is_ok_and(|launch| launch.len() > 0)
}

#[expect(
    clippy::disallowed_methods,
    reason = "our own state directory, which is in memory"
)]
fn read_exit(dir: &Path) -> Result<Option<Exit>> {
    let path = dir.join(EXIT);
    match fs::read_to_string(&path) {
        Ok(text) => Exit::from_text(&text).map(Some).map_err(|e| {
            MonitorError::file("read", path, io::Error::new(io::ErrorKind::InvalidData, e))
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(MonitorError::file("read", path, e)),
    }
}

/// Through the directory's descriptor: a socket path may have 107 bytes only. Never waits for a monitor that takes no
/// more connections: that is `WouldBlock`.
fn connect_ctl(dir: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let fd = rustix::fs::open(
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{CTL}", fd.as_raw_fd()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// The monitor as it wrote itself down, if that process still is one of this directory.
#[expect(
    clippy::disallowed_methods,
    reason = "our own state directory, which is in memory"
)]
fn recorded_monitor(dir: &Path) -> Option<rustix::process::Pid> {
    let pid = Launcher::recorded(dir)?.monitor;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let of_dir = line
        .split(|b| *b == 0)
        .any(|argument| argument == dir.as_os_str().as_encoded_bytes());
    rustix::process::Pid::from_raw(pid).filter(|_| of_dir)
}
