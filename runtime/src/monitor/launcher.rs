//! Starts monitors, finds them again, cleans up after them.
//!
//! Owns one thing on the machine, made anew at every daemon start and safe to leave behind: read-only binds of the two
//! helpers in `<run>/bin`. A container with SYS_PTRACE in a shared pid namespace can open the helper's image through
//! `/proc/<pid>/exe`; on a read-only mount it cannot write to it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cairn_monitor::record::{CONFIG, CTL, CgroupDir, EXIT, Exit, LAUNCH, Launch, PID, Pid};
use cairn_monitor::wire::Phase;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::client::Monitor;
use super::error::MonitorError;

const MONITOR: &str = "cairn-monitor";
const CREATE: &str = "cairn-create";
/// All that is mounted in the host, innermost first.
const MOUNTS: [&str; 3] = ["bin/cairn-monitor", "bin/cairn-create", "bin"];

/// Where the launcher works. Both paths absolute.
#[derive(Debug, Clone)]
pub struct LauncherConfig {
    /// A directory of its own, root's alone; on tmpfs best. Gets `bin/` and `seccomp/`.
    pub run_dir: PathBuf,
    /// Where `cairn-monitor` and `cairn-create` lie.
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
    /// CRI log; its directory is made (CRI-254).
    pub log_path: Option<PathBuf>,
    /// Content bytes per record, CRI's default is 16384; 0: as many as the monitor keeps (1 MiB).
    pub max_log_line: u32,
}

/// A container made and not yet started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    pub pid: i32,
    pub start_time: u64,
}

/// What a restarted daemon finds in a container's directory.
pub enum Reattached {
    /// Started and, as far as the monitor knows, alive.
    Running(Monitor),
    /// The end is known; the monitor still waits for `delete` if there is one.
    Exited(Exit, Option<Monitor>),
    /// No monitor and no exit: it was killed, or the machine restarted, or the container never got so far. Next:
    /// [`Launcher::cleanup`].
    Lost,
}

/// Starts monitors.
#[derive(Debug, Clone)]
pub struct Launcher {
    run_dir: PathBuf,
}

type Result<T> = std::result::Result<T, MonitorError>;

impl Launcher {
    /// Binds the helpers. Old binds of a former daemon are replaced; monitors that run from them keep what they have.
    pub async fn new(config: LauncherConfig) -> Result<Launcher> {
        let run = config.run_dir.clone();
        blocking(move || bind_helpers(&config)).await?;
        Ok(Launcher { run_dir: run })
    }

    /// Undoes `new`. For tests and a clean shutdown without containers.
    pub async fn unbind(self) -> Result<()> {
        blocking(move || {
            for name in MOUNTS {
                unmount_all(&self.run_dir.join(name))?;
            }
            Ok(())
        })
        .await
    }

    /// Monitor, `cairn-create`, init: a container whose program waits for [`Monitor::start`]. On failure the monitor
    /// undoes what it did; directory and cgroups are the caller's.
    pub async fn launch(&self, spec: LaunchSpec) -> Result<(Monitor, Created)> {
        let (id, dir) = (spec.id.clone(), spec.dir.clone());
        self.write_files(spec)?;
        let (ours, theirs) =
            UnixStream::pair().map_err(|e| MonitorError::file("connect", &dir, e))?;
        let mut child = tokio::process::Command::new(self.bin(MONITOR))
            .arg(&dir)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| MonitorError::file("spawn the monitor", self.bin(MONITOR), e))?;
        // Reaps it, whenever it ends.
        let ended = tokio::spawn(async move { child.wait().await });
        let (monitor, _) = Monitor::connect(id, dir, ours).await?;
        match monitor.create().await {
            Ok((pid, start_time)) => Ok((monitor, Created { pid, start_time })),
            Err(error) => {
                drop(monitor);
                // It cleans up and ends, now that nobody is connected.
                let _slow = tokio::time::timeout(std::time::Duration::from_secs(20), ended).await;
                Err(error)
            }
        }
    }

    /// After a daemon restart: who is there?
    pub async fn reattach(&self, id: &str, dir: &Path) -> Result<Reattached> {
        let exit = read_exit(dir)?;
        let stream = match connect_ctl(dir) {
            Ok(stream) => stream,
            // Nobody listens (any more).
            Err(_) => return Ok(exit.map_or(Reattached::Lost, |e| Reattached::Exited(e, None))),
        };
        match Monitor::connect(id.to_owned(), dir.to_owned(), stream).await {
            Ok((monitor, Phase::Running)) => Ok(Reattached::Running(monitor)),
            Ok((monitor, Phase::Exited)) => match monitor.ending() {
                Some(super::Ending::Exited(exit)) => Ok(Reattached::Exited(exit, Some(monitor))),
                _ => Ok(Reattached::Lost),
            },
            // Not started: it undoes itself as soon as this connection ends.
            Ok(_) => Ok(Reattached::Lost),
            Err(MonitorError::Lost { .. }) => {
                Ok(exit.map_or(Reattached::Lost, |e| Reattached::Exited(e, None)))
            }
            Err(other) => Err(other),
        }
    }

    /// When the monitor is gone: kills what is left of the container (everything in its cgroups), removes sub-cgroups
    /// and state. Returns the exit if the monitor had written one. Safe to repeat.
    pub async fn cleanup(&self, dir: &Path) -> Result<Option<Exit>> {
        if fs::exists(dir.join(LAUNCH)).unwrap_or(false) {
            let status = tokio::process::Command::new(self.bin(MONITOR))
                .arg("--cleanup")
                .arg(dir)
                .env_clear()
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .await
                .map_err(|e| MonitorError::file("clean up by the monitor", dir, e))?;
            if !status.success() {
                let left = io::Error::other(format!("processes or cgroups are left ({status})"));
                return Err(MonitorError::file("clean up by the monitor", dir, left));
            }
        }
        read_exit(dir)
    }

    /// Init and monitor as last recorded in a container's directory.
    pub fn recorded(dir: &Path) -> Option<Pid> {
        Pid::from_text(&fs::read_to_string(dir.join(PID)).ok()?).ok()
    }

    fn bin(&self, name: &str) -> PathBuf {
        self.run_dir.join("bin").join(name)
    }

    fn write_files(&self, spec: LaunchSpec) -> Result<()> {
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
        } = spec;
        make_dir(&dir)?;
        if let Some(parent) = log_path.as_deref().and_then(Path::parent) {
            fs::create_dir_all(parent)
                .map_err(|e| MonitorError::file("make the log directory", parent, e))?;
        }
        let text = |p: PathBuf| p.into_os_string().into_string();
        let launch = Launch {
            id,
            create: self.bin(CREATE).to_string_lossy().into_owned(),
            cgroups,
            tty,
            stdin,
            stdin_once,
            log_path: log_path.map(text).transpose().map_err(|p| {
                MonitorError::file("use the log path", p, io::Error::other("it is not UTF-8"))
            })?,
            max_log_line,
            seccomp_cache: self.run_dir.join("seccomp").to_string_lossy().into_owned(),
        };
        write_file(&dir.join(CONFIG), &config)?;
        write_file(&dir.join(LAUNCH), &launch.encode())
    }
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(f).await {
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

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut f| f.write_all(bytes))
        .map_err(|e| MonitorError::file("write", path, e))
}

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

/// Through the directory's descriptor: a socket path may have 107 bytes only.
fn connect_ctl(dir: &Path) -> io::Result<UnixStream> {
    use std::os::fd::AsRawFd;
    let fd = rustix::fs::open(
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    UnixStream::connect(format!("/proc/self/fd/{}/{CTL}", fd.as_raw_fd()))
}

fn bind_helpers(config: &LauncherConfig) -> Result<()> {
    let run = &config.run_dir;
    let bin = run.join("bin");
    for dir in [run, &bin, &run.join("seccomp")] {
        make_dir(dir)?;
    }
    for name in MOUNTS {
        unmount_all(&run.join(name))?;
    }
    // A mount of its own, so that the binds propagate nowhere.
    bind(&bin, &bin)?;
    rustix::mount::mount_change(&bin, MountPropagationFlags::PRIVATE)
        .map_err(|e| MonitorError::file("make private", &bin, e))?;
    for name in [MONITOR, CREATE] {
        let (source, target) = (config.helpers_dir.join(name), bin.join(name));
        check_helper(&source)?;
        File::create(&target).map_err(|e| MonitorError::file("make", &target, e))?;
        bind(&source, &target)?;
        rustix::mount::mount_change(&target, MountPropagationFlags::PRIVATE)
            .map_err(|e| MonitorError::file("make private", &target, e))?;
        rustix::mount::mount_remount(
            &target,
            MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID,
            "",
        )
        .map_err(|e| MonitorError::file("make read-only", &target, e))?;
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    rustix::mount::mount_bind(source, target).map_err(|e| MonitorError::file("bind", target, e))
}

fn check_helper(path: &Path) -> Result<()> {
    let wrong = |text: &str| MonitorError::Helpers(format!("{}: {text}", path.display()));
    let meta = fs::metadata(path).map_err(|e| MonitorError::file("find the helper", path, e))?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        return Err(wrong("is not an executable file"));
    }
    if Permissions::mode(&meta.permissions()) & 0o022 != 0 {
        return Err(wrong("can be written by others than its owner"));
    }
    Ok(())
}

/// Takes every mount off a path (a former daemon may have left one).
fn unmount_all(path: &Path) -> Result<()> {
    // Bounded: nobody stacks mounts here but former daemons, one each.
    for _ in 0..64 {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(e) => return Err(MonitorError::file("unmount", path, e)),
        }
    }
    Err(MonitorError::file(
        "unmount",
        path,
        io::Error::other("64 mounts are stacked on it"),
    ))
}
