//! The plugin under test as a process, or as an external client.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Mutex,
    time::Duration,
};

use nri::PluginId;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Pid, Signal, kill_process},
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::tap::Tap;

/// Locked while a descriptor can be inherited.
static LAUNCHING: Mutex<()> = Mutex::new(());

/// Between SIGTERM and SIGKILL, and from the end of a connection to that of a launched plugin.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// Placeholder of the socket in the arguments of a plugin that connects.
const SOCKET: &str = "{socket}";
/// Bytes of its output in a report.
const TAIL: usize = 2048;

/// Start method of plugins.
#[derive(Debug, Clone)]
pub(crate) enum How {
    /// As a runtime launches them: three variables and an open connection.
    Launched(Vec<OsString>),
    /// Started with the path of the socket in place of `{socket}`.
    Connected(Vec<OsString>),
    /// Started externally.
    Awaited,
}

/// The start method of the plugin, and its output.
pub(crate) struct Program {
    pub how: How,
    pub id: PluginId,
    pub socket: PathBuf,
    pub output: PathBuf,
}

impl Program {
    /// Starts an instance; `None` if it is started externally.
    pub(crate) fn start(&self, tap: &Tap) -> io::Result<Option<Instance>> {
        let mut options = OpenOptions::new();
        let output = options.create(true).append(true).open(&self.output)?;
        match &self.how {
            How::Awaited => Ok(None),
            How::Launched(command) => {
                // Until ours is closed: no other child may inherit it.
                let _alone = LAUNCHING.lock();
                let socket = tap.connection()?;
                fcntl_setfd(&socket, FdFlags::empty())?;
                let (mut command, name) = self.command(command, output)?;
                command
                    .env_clear()
                    .env("NRI_PLUGIN_NAME", &self.id.name)
                    .env("NRI_PLUGIN_IDX", &self.id.index)
                    .env("NRI_PLUGIN_SOCKET", socket.as_raw_fd().to_string());
                spawn(&mut command, &name).map(Some)
            }
            How::Connected(command) => {
                let (mut command, name) = self.command(command, output)?;
                spawn(&mut command, &name).map(Some)
            }
        }
    }

    /// Starts plugins with these words from now on.
    pub(crate) fn replace(&mut self, words: &[String]) {
        if let How::Launched(command) | How::Connected(command) = &mut self.how {
            *command = words.iter().map(OsString::from).collect();
        }
    }

    /// Possible reason why a plugin uses another socket.
    pub(crate) fn hint(&self) -> &'static str {
        let names = |word: &OsString| word.to_str().is_some_and(|word| word.contains(SOCKET));
        match &self.how {
            How::Connected(words) if !words.iter().any(names) => {
                "; none of its arguments has {socket}, which stands for the socket's path"
            }
            _ => "",
        }
    }

    pub(crate) fn is_launched(&self) -> bool {
        matches!(self.how, How::Launched(_))
    }

    fn command(&self, words: &[OsString], output: File) -> io::Result<(Command, PathBuf)> {
        let socket = self.socket.to_string_lossy();
        let with_socket = |word: &OsString| match word.to_str() {
            Some(text) => OsString::from(text.replace(SOCKET, &socket)),
            None => word.clone(),
        };
        let (program, args) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let program = found(Path::new(program));
        let mut command = Command::new(&program);
        command
            .args(args.iter().map(with_socket))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true);
        Ok((command, program))
    }

    /// Bytes printed so far.
    pub(crate) fn printed(&self) -> usize {
        let file = fs::metadata(&self.output);
        file.map_or(0, |file| usize::try_from(file.len()).unwrap_or(0))
    }

    /// Output from this byte on.
    pub(crate) fn printed_since(&self, from: usize) -> String {
        let text = fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned()
    }

    /// The end of its output.
    pub(crate) fn tail(&self) -> String {
        let from = self.printed().saturating_sub(TAIL);
        let text = self.printed_since(from);
        // Its first line is cut, unless it is all of the output.
        let whole = match text.split_once('\n') {
            Some((_, rest)) if from > 0 => rest,
            _ => &text,
        };
        whole.trim().to_owned()
    }
}

/// Resolves a bare name like a shell, because a launched plugin has no PATH.
fn found(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path).map(|dir| dir.join(program));
    dirs.find(|file| file.is_file())
        .unwrap_or_else(|| program.to_owned())
}

fn spawn(command: &mut Command, program: &Path) -> io::Result<Instance> {
    let child = command.spawn().map_err(|e| {
        let what = format!("start the plugin {program:?}: {e}");
        io::Error::new(e.kind(), what)
    })?;
    let pid = child.id().unwrap_or_default();
    Ok(Instance { child, pid })
}

/// One running plugin; dropping it kills it.
pub(crate) struct Instance {
    child: Child,
    pub pid: u32,
}

impl Instance {
    /// Its exit status, once it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end; `None` at the limit.
    pub(crate) async fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        timeout(limit, self.child.wait()).await.ok()?.ok()
    }

    /// SIGTERM, a grace period, SIGKILL. False if SIGKILL was needed.
    pub(crate) async fn stop(mut self) -> bool {
        if self.ended().is_some() {
            return true;
        }
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            // An error means that it has just ended.
            let _ = kill_process(pid, Signal::TERM);
        }
        let ended = self.ends_within(GRACE).await.is_some();
        if !ended {
            let _ = self.child.kill().await;
        }
        ended
    }
}

/// Resident memory of a process in bytes, from `/proc`.
pub(crate) fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}
