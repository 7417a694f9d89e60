//! Starts monitors, finds them after a restart, and cleans up after them.

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

use cairn_monitor::own_file;
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

/// The time that a killed monitor may take to end.
const MONITOR_GONE: Duration = Duration::from_secs(5);

/// Directories of the launcher. Both paths are absolute.
#[derive(Debug, Clone)]
pub struct LauncherConfig {
    /// A directory that only root and this launcher use, preferably on tmpfs. It contains
    /// `seccomp/`.
    pub run_dir: PathBuf,
    /// The directory of `cairn-monitor` and `cairn-create`.
    pub helpers_dir: PathBuf,
}

/// One container to create.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    pub id: String,
    /// The container's own directory. The launcher makes it; the caller removes it after `delete`
    /// or a failure.
    pub dir: PathBuf,
    /// The OCI spec as JSON, with absolute `root.path` and `linux.cgroupsPath`. The process (user,
    /// groups, capabilities, limits, seccomp) is taken from it. The caller applies
    /// `linux.resources`.
    pub config: Vec<u8>,
    /// Existing directories with their limits applied; init joins each.
    pub cgroups: Vec<CgroupDir>,
    pub tty: bool,
    pub stdin: bool,
    pub stdin_once: bool,
    /// The CRI log, in the form of `cairn_monitor::log_path`. Its directory exists (CRI-254).
    pub log_path: Option<PathBuf>,
    /// Content bytes per record. CRI's default is 16384; 0 means the monitor's maximum (1 MiB).
    pub max_log_line: u32,
    /// The process whose PID namespace `config` names by path; `None` if no process of that
    /// namespace is known.
    pub join: Option<Join>,
}

/// The state that a restarted daemon finds in a container's directory.
pub enum Reattached {
    /// Started and, as far as the monitor knows, alive.
    Running(Monitor),
    /// The exit is known. The monitor, if it runs, still waits for `delete`.
    Exited(Exit, Option<Monitor>),
    /// Neither monitor nor exit: the monitor was killed, the machine restarted, or the container
    /// was never started. Call [`Launcher::cleanup`] next.
    Lost,
}

/// Runs monitors: as processes of our program, or in memory in the tests' model.
pub trait Monitors: fmt::Debug + Send + Sync {
    /// Starts the monitor of a directory, with `socket` as its first connection. Returns a future
    /// of its end, which the caller always awaits.
    ///
    /// # Errors
    /// The process cannot be started.
    fn spawn(&self, dir: &Path, socket: UnixStream) -> io::Result<BoxFuture<'static, ()>>;
    /// Connects to a monitor without waiting: a monitor that accepts no more connections is
    /// `WouldBlock`.
    ///
    /// # Errors
    /// No process listens.
    fn connect(&self, dir: &Path) -> io::Result<UnixStream>;
    /// Kills the monitor of a directory and waits until it has ended.
    fn end<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Kills the remaining processes of an ended monitor and removes its state.
    fn clean<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// The program that keeps a systemd scope, with `--hold`.
    fn program(&self) -> PathBuf;
}

/// Runs the programs in the tree of the helpers.
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
    /// Makes the tree of the helpers. Monitors of an earlier daemon keep theirs.
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

    /// Starts the monitor, `cairn-create` and init: a container whose program waits for
    /// [`Monitor::start`]. On failure the monitor undoes its own steps; the caller removes the
    /// directory and the cgroups.
    pub async fn launch(&self, spec: LaunchSpec) -> Result<Monitor> {
        let (id, dir) = (spec.id.clone(), spec.dir.clone());
        let run_dir = self.run_dir.clone();
        blocking(move || write_files(&run_dir, spec)).await?;
        let (ours, theirs) =
            UnixStream::pair().map_err(|e| MonitorError::file("connect", &dir, e))?;
        let spawned = self.monitors.spawn(&dir, theirs);
        let ended = spawned.map_err(|e| MonitorError::file("spawn the monitor for", &dir, e))?;
        // Reaps the monitor when it ends.
        let ended = tokio::spawn(ended);
        let (monitor, _) = Monitor::connect(id, dir, ours).await?;
        match monitor.create().await {
            Ok(()) => Ok(monitor),
            Err(error) => {
                drop(monitor);
                // It cleans up and ends, since no client is connected.
                let _slow = tokio::time::timeout(Duration::from_secs(20), ended).await;
                Err(error)
            }
        }
    }

    /// Finds the state of a container after a daemon restart.
    pub async fn reattach(&self, id: &str, dir: &Path) -> Result<Reattached> {
        let exit = read_exit(dir)?;
        let stream = match self.monitors.connect(dir) {
            Ok(stream) => stream,
            // A process listens but accepts no connection.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(MonitorError::file("connect to the monitor", dir, e));
            }
            // No process listens.
            Err(_) => return Ok(exit.map_or(Reattached::Lost, |e| Reattached::Exited(e, None))),
        };
        match Monitor::connect(id.to_owned(), dir.to_owned(), stream).await {
            Ok((monitor, Phase::Running)) => Ok(Reattached::Running(monitor)),
            Ok((monitor, Phase::Exited)) => match monitor.ending() {
                Some(Ending::Exited(exit)) => Ok(Reattached::Exited(exit, Some(monitor))),
                _ => Ok(Reattached::Lost),
            },
            // Not started: the monitor undoes the creation when this connection ends.
            Ok(_) => Ok(Reattached::Lost),
            Err(MonitorError::Container { why: Why::Lost, .. }) => {
                Ok(exit.map_or(Reattached::Lost, |e| Reattached::Exited(e, None)))
            }
            Err(other) => Err(other),
        }
    }

    /// Kills everything that remains of a container: its monitor if it still runs, and all
    /// processes in its cgroups. Removes its sub-cgroups and state. Returns the exit if the monitor
    /// recorded one. Safe to repeat, also before anything was launched.
    pub async fn cleanup(&self, dir: &Path) -> Result<Option<Exit>> {
        self.end_monitor(dir).await?;
        if was_launched(dir) {
            let cleaned = self.monitors.clean(dir).await;
            cleaned.map_err(|e| MonitorError::file("clean up by the monitor", dir, e))?;
        }
        read_exit(dir)
    }

    /// Kills the monitor of a directory in any state, and waits until it has ended. Used for a
    /// monitor that does not answer or is no longer needed. If no process listens, the monitor has
    /// ended.
    pub async fn end_monitor(&self, dir: &Path) -> Result<()> {
        let ended = self.monitors.end(dir).await;
        ended.map_err(|cause| MonitorError::file("end the monitor", dir, cause))
    }

    /// Returns the cgroups of a directory's launch file.
    #[expect(
        clippy::disallowed_methods,
        reason = "our own state directory, which is in memory"
    )]
    pub fn recorded_cgroups(dir: &Path) -> Vec<CgroupDir> {
        let launch = own_file::read(dir.join(LAUNCH)).ok();
        let launch = launch.and_then(|bytes| Launch::decode(&bytes).ok());
        launch.map_or_else(Vec::new, |launch| launch.cgroups)
    }

    /// Returns init and monitor as last recorded in a container's directory.
    #[expect(
        clippy::disallowed_methods,
        reason = "our own state directory, which is in memory"
    )]
    pub fn recorded(dir: &Path) -> Option<Pid> {
        Pid::from_text(&own_file::read_to_string(dir.join(PID)).ok()?).ok()
    }

    /// Returns the program that keeps a systemd scope, with `--hold`. Valid as long as this
    /// launcher.
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
        // The monitor starts no process before a request, and its processes inherit this.
        child.id().into_iter().for_each(inherited::reset);
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

    /// Named by descriptor, which the child still has when it looks up its program.
    fn program(&self) -> PathBuf {
        format!("/proc/self/fd/{}/{MONITOR}", self.0.as_raw_fd()).into()
    }
}

async fn end(dir: &Path) -> io::Result<()> {
    let listener = match connect_ctl(dir) {
        Ok(stream) => rustix::net::sockopt::socket_peercred(&stream).map(|peer| peer.pid)?,
        // Its queue of connections is full: it is stuck.
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
    // The monitor still listens, so the pid belonged to it when the pidfd was opened.
    if let Err(e) = connect_ctl(dir)
        && e.kind() != io::ErrorKind::WouldBlock
    {
        return Ok(());
    }
    match pidfd_send_signal(&pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(e) => return Err(e.into()),
    }
    // Deprecated for descriptor types that can be closed or replaced; an OwnedFd cannot.
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

/// Does not flush: the described state does not survive the kernel either.
fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    replace::file(path, bytes).map_err(|e| MonitorError::file("write", path, e))
}

/// A monitor is spawned only after its launch file is written. Earlier versions did not write it
/// atomically: an empty file is left by a crash before the launch.
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
    match own_file::read_to_string(&path) {
        Ok(text) => Exit::from_text(&text).map(Some).map_err(|e| {
            MonitorError::file("read", path, io::Error::new(io::ErrorKind::InvalidData, e))
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(MonitorError::file("read", path, e)),
    }
}

/// Connects through the directory's descriptor, because a socket path is limited to 107 bytes. Does
/// not wait: a monitor that accepts no more connections is `WouldBlock`.
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

/// Returns the recorded pid of the monitor if that process is still a monitor of this directory.
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
