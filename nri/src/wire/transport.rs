//! Sockets and processes: listening without taking another runtime's socket, finding plugins in a
//! directory, starting them with one end of a socket pair as fd 3, and ending them.

use std::{
    ffi::CString,
    fs,
    io::{self, Read as _},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn},
    sys::{signal, stat::Mode},
};
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
    },
};
use tokio::{
    io::{AsyncReadExt as _, unix::AsyncFd},
    net::{UnixListener, UnixStream, unix::pipe},
};

use super::rpc::one_line;
use crate::owners::PluginId;

/// The variables a launched plugin is started with; it gets no others (NRI-120).
pub(crate) const ENV_NAME: &str = "NRI_PLUGIN_NAME";
pub(crate) const ENV_INDEX: &str = "NRI_PLUGIN_IDX";
pub(crate) const ENV_SOCKET: &str = "NRI_PLUGIN_SOCKET";
/// Where it finds its socket.
const PLUGIN_FD: i32 = 3;
/// Lines of a plugin's standard error that are logged in a second, and bytes of one.
const LINES_A_SECOND: u32 = 20;
const LONGEST_LINE: usize = 1024;
/// Between SIGTERM and SIGKILL (NRI-122).
const TERM_GRACE: Duration = Duration::from_secs(2);

/// Error of a socket, a directory or a process.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("NRI socket {0}: in use by another runtime")]
    InUse(PathBuf),
    #[error("NRI socket {0}: exists and is not a socket")]
    NotASocket(PathBuf),
    #[error("NRI socket {path}: {step}: {cause}")]
    Socket {
        path: PathBuf,
        step: &'static str,
        cause: io::Error,
    },
    #[error("NRI plugin directory {path}: {cause}")]
    PluginDir { path: PathBuf, cause: io::Error },
    #[error("plugin {plugin}: {step}: {cause}")]
    Launch {
        plugin: PluginId,
        step: &'static str,
        cause: io::Error,
    },
}

/// A listening socket; its file goes with it (NRI-102).
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Fails if someone answers at `path`, or if there is something that is no socket.
pub(crate) async fn ensure_free(path: &Path) -> Result<(), TransportError> {
    let meta = match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(meta) => meta,
    };
    if !meta.file_type().is_socket() {
        return Err(TransportError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(TransportError::InUse(path.to_owned())),
        Err(_) => Ok(()),
    }
}

/// Listens at `path`; a dead socket that is in the way is removed, nothing else is.
pub(crate) async fn listen(path: &Path, mode: u32) -> Result<Listener, TransportError> {
    let fail = |step| {
        let path = path.to_owned();
        move |cause| TransportError::Socket { path, step, cause }
    };
    ensure_free(path).await?;
    if let Some(parent) = path.parent() {
        let mut dir = fs::DirBuilder::new();
        let made = dir.recursive(true).mode(0o700).create(parent);
        made.map_err(fail("make its directory"))?;
    }
    if fs::symlink_metadata(path).is_ok() {
        fs::remove_file(path).map_err(fail("remove the dead socket"))?;
    }
    let listener = UnixListener::bind(path).map_err(fail("listen"))?;
    let listener = Listener {
        listener,
        path: path.to_owned(),
    };
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).map_err(fail("set its mode"))?;
    Ok(listener)
}

/// A plugin file in the plugin directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) id: PluginId,
    pub(crate) file: PathBuf,
    pub(crate) config: String,
    /// What runs the file, if it is no program.
    pub(crate) host: Option<PathBuf>,
}

/// A file that is left out, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) file: PathBuf,
    pub(crate) why: String,
}

/// Looks for plugins (NRI-200…204). One bad file does not keep the others from starting.
pub(crate) fn discover(
    dir: &Path,
    config_dir: Option<&Path>,
    wasm_host: Option<&Path>,
    trusted_only: bool,
) -> Result<(Vec<Found>, Vec<LeftOut>), TransportError> {
    let fail = |cause| TransportError::PluginDir {
        path: dir.to_owned(),
        cause,
    };
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
        entries => entries.map_err(fail)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.map_err(fail)?.path());
    }
    files.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    if trusted_only && !files.is_empty() {
        let meta = fs::metadata(dir).map_err(fail)?;
        if let Some(why) = distrusted(&meta) {
            let left = files.into_iter().map(|file| {
                let why = format!("its directory {why}");
                LeftOut { file, why }
            });
            return Ok((Vec::new(), left.collect()));
        }
    }
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for file in files {
        match judge(&file, config_dir, wasm_host, trusted_only) {
            Ok(Some(plugin)) => found.push(plugin),
            Ok(None) => {}
            Err(why) => left_out.push(LeftOut { file, why }),
        }
    }
    Ok((found, left_out))
}

/// `None` for what is no plugin at all; an error for what was meant to be one.
fn judge(
    file: &Path,
    config_dir: Option<&Path>,
    wasm_host: Option<&Path>,
    trusted_only: bool,
) -> Result<Option<Found>, String> {
    let meta = fs::metadata(file).map_err(|e| e.to_string())?;
    if !meta.is_file() || meta.mode() & 0o111 == 0 {
        return Ok(None);
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let id: PluginId = name.parse().map_err(|e| format!("{e}"))?;
    if trusted_only && let Some(why) = distrusted(&meta) {
        return Err(why.to_owned());
    }
    let host = match is_module(file).map_err(|e| e.to_string())? {
        true => Some(host_of_modules(wasm_host)?),
        false => None,
    };
    let config = config_dir.map_or(Ok(String::new()), |dir| config_of(&id, dir))?;
    Ok(Some(Found {
        id,
        file: file.to_owned(),
        config,
        host,
    }))
}

/// Whether it begins as WebAssembly modules do (NRI-211).
fn is_module(file: &Path) -> io::Result<bool> {
    let mut magic = [0; 4];
    match fs::File::open(file)?.read_exact(&mut magic) {
        Ok(()) => Ok(magic == *b"\0asm"),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

fn host_of_modules(program: Option<&Path>) -> Result<PathBuf, String> {
    let program = program.ok_or("is a WebAssembly module, which this runtime does not run")?;
    match fs::metadata(program) {
        Ok(_) => Ok(program.to_owned()),
        Err(e) => Err(format!(
            "is a WebAssembly module, and what runs them is not installed: {}: {e}",
            program.display()
        )),
    }
}

fn distrusted(meta: &fs::Metadata) -> Option<&'static str> {
    if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        return Some("belongs neither to root nor to us");
    }
    (meta.mode() & 0o022 != 0).then_some("is writable by users other than its owner")
}

/// `NN-name.conf`, else `name.conf`, else nothing (NRI-204).
fn config_of(id: &PluginId, dir: &Path) -> Result<String, String> {
    for name in [format!("{id}.conf"), format!("{}.conf", id.name)] {
        let path = dir.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(text),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("configuration {}: {e}", path.display())),
        }
    }
    Ok(String::new())
}

/// A process we have started. Dropping it kills and reaps it, whatever state it is in (NRI-123).
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) pid: u32,
    pidfd: AsyncFd<OwnedFd>,
    reaped: bool,
}

impl Child {
    /// Waits until the process has ended, and reaps it.
    pub(crate) async fn wait(&mut self) {
        if !self.reaped {
            // Readable once it has ended; an error here cannot be: then the drop reaps.
            let _ = self.pidfd.readable().await;
            self.reap();
        }
    }

    /// SIGTERM, a grace, SIGKILL, reap (NRI-122).
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(TERM_GRACE, self.wait()).await.is_err() {
            self.signal(Signal::KILL);
            self.wait().await;
        }
    }

    fn signal(&self, signal: Signal) {
        if !self.reaped {
            let _ = pidfd_send_signal(self.pidfd.get_ref(), signal);
        }
    }

    fn reap(&mut self) {
        use std::os::fd::AsFd;
        let _ = waitid(
            WaitId::PidFd(self.pidfd.get_ref().as_fd()),
            WaitIdOptions::EXITED,
        );
        self.reaped = true;
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
            // A killed process ends at once; this does not wait for anything it could delay.
            self.reap();
        }
    }
}

/// Starts a plugin: no arguments (its host: the module), three variables, /dev/null as stdin and stdout, our log behind stderr, its socket as fd 3.
///
/// Uses posix_spawn, without code between fork and exec.
pub(crate) fn launch(found: &Found) -> Result<(Child, UnixStream), TransportError> {
    let fail = |step| {
        let plugin = found.id.clone();
        move |cause: io::Error| TransportError::Launch {
            plugin,
            step,
            cause,
        }
    };
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|e| fail("make its socket")(e.into()))?;
    // Plugins may expect a blocking descriptor; the flag belongs to each end of the pair.
    rustix::io::ioctl_fionbio(&theirs, false).map_err(|e| fail("make its socket")(e.into()))?;
    let (said, says) = io::pipe().map_err(fail("make a pipe"))?;
    // Above what the plugin's own descriptors are put at.
    let says = rustix::io::fcntl_dupfd_cloexec(&says, PLUGIN_FD + 1);
    let says = says.map_err(|e| fail("make a pipe")(e.into()))?;
    let pid = spawn(found, &theirs, &says).map_err(|e| fail("start")(e.into()))?;
    drop((theirs, says));
    let stream = std::os::unix::net::UnixStream::from(ours);
    let stream = UnixStream::from_std(stream).map_err(fail("watch its socket"))?;
    let child = own(pid).inspect_err(|_| {
        // No descriptor to own it by: end it here.
        let _ = signal::kill(pid, signal::Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(pid, None);
    });
    let child = child.map_err(fail("watch it"))?;
    let said = pipe::Receiver::from_owned_fd(said.into()).map_err(fail("read what it says"))?;
    tokio::spawn(log_lines(found.id.clone(), said));
    Ok((child, stream))
}

/// What a launched plugin writes to standard error, as lines of the log: so many a second, each cut short, and how many
/// more there were. It is read to its end, or the plugin would wait for us.
async fn log_lines(plugin: PluginId, mut said: pipe::Receiver) {
    let mut line: Vec<u8> = Vec::new();
    let mut piece = [0; 4096];
    let (mut second, mut told, mut dropped) = (Instant::now(), 0, 0_u64);
    let mut tell = |line: &mut Vec<u8>| {
        if second.elapsed() >= Duration::from_secs(1) {
            if dropped > 0 {
                tracing::warn!(%plugin, "{dropped} more lines on its standard error");
            }
            (second, told, dropped) = (Instant::now(), 0, 0);
        }
        if told < LINES_A_SECOND {
            told += 1;
            let text = one_line(&String::from_utf8_lossy(line));
            tracing::info!(%plugin, "says: {text}");
        } else {
            dropped += 1;
        }
        line.clear();
    };
    while let Ok(read @ 1..) = said.read(&mut piece).await {
        for byte in &piece[..read] {
            match byte {
                b'\n' => tell(&mut line),
                byte if line.len() < LONGEST_LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    if !line.is_empty() {
        tell(&mut line);
    }
}

#[allow(
    deprecated,
    reason = "an OwnedFd is never closed behind AsyncFd's back, and the replacement is unsafe"
)]
fn own(pid: nix::unistd::Pid) -> io::Result<Child> {
    let pid = Pid::from_raw(pid.as_raw()).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(Child {
        pid: pid.as_raw_nonzero().get().cast_unsigned(),
        pidfd: AsyncFd::new(pidfd)?,
        reaped: false,
    })
}

fn spawn(found: &Found, socket: &OwnedFd, stderr: &OwnedFd) -> nix::Result<nix::unistd::Pid> {
    let text = |s: String| CString::new(s).map_err(|_| nix::Error::EINVAL);
    let bytes = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let file = bytes(&found.file).map_err(|_| nix::Error::EINVAL)?;
    let host = found.host.as_deref().map(bytes).transpose();
    let host = host.map_err(|_| nix::Error::EINVAL)?;
    // A module is what its host is given.
    let arguments: Vec<_> = host.iter().chain([&file]).map(CString::as_c_str).collect();
    let env = [
        text(format!("{ENV_NAME}={}", found.id.name))?,
        text(format!("{ENV_INDEX}={}", found.id.index))?,
        text(format!("{ENV_SOCKET}={PLUGIN_FD}"))?,
    ];
    let mut actions = PosixSpawnFileActions::init()?;
    // The socket first: opening /dev/null must not land on it.
    actions.add_dup2(socket.as_raw_fd(), PLUGIN_FD)?;
    actions.add_dup2(stderr.as_raw_fd(), 2)?;
    for fd in 0..2 {
        actions.add_open(fd, "/dev/null", nix::fcntl::OFlag::O_RDWR, Mode::empty())?;
    }
    let mut attr = PosixSpawnAttr::init()?;
    attr.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK,
    )?;
    // Rust programs ignore SIGPIPE; what they start must not inherit that, nor a signal mask.
    let mut default = signal::SigSet::empty();
    default.add(signal::Signal::SIGPIPE);
    attr.set_sigdefault(&default)?;
    attr.set_sigmask(&signal::SigSet::empty())?;
    posix_spawn(arguments[0], &actions, &attr, &arguments, &env)
}
