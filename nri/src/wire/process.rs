//! Launched plugins as processes: started with one end of a socket pair as fd 3, logged, and ended.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
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
    net::{UnixStream, unix::pipe},
};

use super::{discover::Found, error::TransportError, rpc::one_line};
use crate::{plugin_id::PluginId, rt};

/// The variables a launched plugin is started with; it gets no others (NRI-120).
pub(crate) const ENV_NAME: &str = "NRI_PLUGIN_NAME";
pub(crate) const ENV_INDEX: &str = "NRI_PLUGIN_IDX";
pub(crate) const ENV_SOCKET: &str = "NRI_PLUGIN_SOCKET";
/// Number of its socket's descriptor.
const PLUGIN_FD: i32 = 3;
/// Lines of a plugin's standard error logged per second, and bytes of one.
const LINES_A_SECOND: u32 = 20;
const LONGEST_LINE: usize = 1024;
/// Between the end of a plugin's connection and of its process.
const ENDING: Duration = Duration::from_millis(100);
/// Between SIGTERM and SIGKILL (NRI-122).
const TERM_GRACE: Duration = Duration::from_secs(2);

/// A process we started. Dropping it kills and reaps it, in any state (NRI-123).
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
            // Readable once it has ended; on the unlikely error, the drop reaps.
            let _ = self.pidfd.readable().await;
            self.reap();
        }
    }

    /// How it ended, if it ends about now: its connection closes shortly before.
    pub(crate) async fn ended(&self) -> Option<String> {
        let _ = tokio::time::timeout(ENDING, self.pidfd.readable()).await;
        // It stays to be reaped.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::PidFd(self.pidfd.get_ref().as_fd()), options);
        let status = status.ok().flatten()?;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(format!("it exited with status {code}")),
            (None, Some(signal)) => Some(format!("signal {signal} ended it")),
            (None, None) => None,
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
            // A killed process ends at once, so this does not block.
            self.reap();
        }
    }
}

/// Starts a plugin: no arguments (its host: the module), three variables, /dev/null as stdin and
/// stdout, our log as stderr, its socket as fd 3.
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
    let (stderr, says) = io::pipe().map_err(fail("make a pipe"))?;
    // Above the numbers of the plugin's own descriptors.
    let says = rustix::io::fcntl_dupfd_cloexec(&says, PLUGIN_FD + 1);
    let says = says.map_err(|e| fail("make a pipe")(e.into()))?;
    let pid = spawn(found, &theirs, &says).map_err(|e| fail("start")(e.into()))?;
    drop((theirs, says));
    let stream = std::os::unix::net::UnixStream::from(ours);
    let stream = UnixStream::from_std(stream).map_err(fail("watch its socket"))?;
    let child = own(pid).inspect_err(|_| {
        // Without a descriptor to own it, it is ended here.
        let _ = signal::kill(pid, signal::Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(pid, None);
    });
    let child = child.map_err(fail("watch it"))?;
    let stderr = pipe::Receiver::from_owned_fd(stderr.into()).map_err(fail("read what it says"))?;
    rt::spawn(log_lines(found.id.clone(), stderr));
    Ok((child, stream))
}

/// Logs a launched plugin's standard error by lines: a limited number per second, each truncated,
/// and the number of omitted lines. It is read to its end, or the plugin would block.
async fn log_lines(plugin: PluginId, mut stderr: pipe::Receiver) {
    let mut line: Vec<u8> = Vec::new();
    let mut piece = [0; 4096];
    let (mut second, mut logged, mut dropped) = (Instant::now(), 0, 0_u64);
    let mut log = |line: &mut Vec<u8>| {
        if second.elapsed() >= Duration::from_secs(1) {
            if dropped > 0 {
                tracing::warn!(%plugin, "{dropped} more lines on its standard error");
            }
            (second, logged, dropped) = (Instant::now(), 0, 0);
        }
        if logged < LINES_A_SECOND {
            logged += 1;
            let text = one_line(&String::from_utf8_lossy(line));
            tracing::info!(%plugin, "says: {text}");
        } else {
            dropped += 1;
        }
        line.clear();
    };
    while let Ok(read @ 1..) = stderr.read(&mut piece).await {
        for byte in &piece[..read] {
            match byte {
                b'\n' => log(&mut line),
                byte if line.len() < LONGEST_LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    if !line.is_empty() {
        log(&mut line);
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
    // A module is an argument of its host.
    let arguments: Vec<_> = host.iter().chain([&file]).map(CString::as_c_str).collect();
    let env = [
        text(format!("{ENV_NAME}={}", found.id.name))?,
        text(format!("{ENV_INDEX}={}", found.id.index))?,
        text(format!("{ENV_SOCKET}={PLUGIN_FD}"))?,
    ];
    let mut actions = PosixSpawnFileActions::init()?;
    // The socket first: /dev/null must not be opened at its number.
    actions.add_dup2(socket.as_raw_fd(), PLUGIN_FD)?;
    actions.add_dup2(stderr.as_raw_fd(), 2)?;
    for fd in 0..2 {
        actions.add_open(fd, "/dev/null", nix::fcntl::OFlag::O_RDWR, Mode::empty())?;
    }
    let mut attr = PosixSpawnAttr::init()?;
    attr.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK,
    )?;
    // Rust programs ignore SIGPIPE; children must not inherit that, nor a signal mask.
    let mut default = signal::SigSet::empty();
    default.add(signal::Signal::SIGPIPE);
    attr.set_sigdefault(&default)?;
    attr.set_sigmask(&signal::SigSet::empty())?;
    posix_spawn(arguments[0], &actions, &attr, &arguments, &env)
}
