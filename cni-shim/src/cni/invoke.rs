//! Runs one plugin: environment and configuration in, result or error out (CRI-510, CRI-511).
//!
//! A plugin has a process group of its own. It is killed at its deadline, when it writes too much,
//! or when the future that waits for it is dropped: no plugin outlives its operation. If it fails
//! or is killed, its child processes are killed too: an `nft` could add rules after the call that
//! removes them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    test_kill_process_group, waitid,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, Interest};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::error::CniError;
use super::result::{PluginError, parse_error};
use crate::types::Answers;

/// Limit of a result's size.
const STDOUT_MAX: u64 = 4 << 20;
/// Limit of a plugin's logged stderr; the rest is dropped.
const STDERR_MAX: u64 = 64 << 10;
/// Time for a killed group to end.
const ENDING: Duration = Duration::from_secs(1);
const ENDING_PAUSE: Duration = Duration::from_millis(2);
const BUSY_RETRIES: usize = 5;
const BUSY_PAUSE: Duration = Duration::from_secs(1);
const VARIABLES: [&str; 6] = [
    "CNI_COMMAND",
    "CNI_CONTAINERID",
    "CNI_NETNS",
    "CNI_IFNAME",
    "CNI_ARGS",
    "CNI_PATH",
];

/// CNI command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
    Status,
    Gc,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Status => "STATUS",
            Verb::Gc => "GC",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) verb: Verb,
    /// The plugin's type: a file name, checked by the configuration's parser.
    pub(crate) kind: &'a str,
    pub(crate) bin_dirs: &'a [PathBuf],
    /// See [`Config::started`](crate::Config::started).
    pub(crate) started: Option<fn(u32)>,
    pub(crate) answers: &'a Answers,
    /// Variables in addition to `CNI_COMMAND` and `CNI_PATH`.
    pub(crate) environment: &'a [(&'static str, String)],
    /// The configuration for its stdin.
    pub(crate) input: Vec<u8>,
    pub(crate) deadline: Instant,
}

/// Finds a plugin's program: the first of that name in the directories.
pub(crate) async fn find_plugin(
    kind: &str,
    bin_dirs: &[PathBuf],
    answers: &Answers,
) -> Result<PathBuf, CniError> {
    let lost = |reason| CniError::Unanswered {
        kind: kind.to_owned(),
        reason,
    };
    let paths: Vec<_> = bin_dirs.iter().map(|dir| dir.join(kind)).collect();
    answers.of(paths.clone()).await.map_err(lost)?;
    let found = spawn_blocking(move || paths.into_iter().find(|path| path.is_file())).await;
    let found = found.map_err(|broken| lost(broken.to_string()))?;
    found.ok_or_else(|| CniError::PluginMissing {
        kind: kind.to_owned(),
        dirs: join(bin_dirs, ", "),
    })
}

impl Call<'_> {
    /// Runs the plugin and returns its stdout.
    pub(crate) async fn run(self) -> Result<Vec<u8>, CniError> {
        let path = find_plugin(self.kind, self.bin_dirs, self.answers).await?;
        let mut child = self.spawn(&path).await?;
        if let (Some(started), Some(pid)) = (self.started, child.id()) {
            started(pid);
        }
        let group = Group::of(&child);
        let talk = self.talk(&mut child);
        let finished = timeout_at(self.deadline, talk).await;
        let late = |_| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "timed out and was killed",
            ))
        };
        let (status, stdout, stderr) = match finished.unwrap_or_else(late) {
            Ok(output) => output,
            Err(cause) => {
                group.end(&mut child).await;
                return Err(CniError::Talk {
                    kind: self.kind.to_owned(),
                    verb: self.verb.as_str(),
                    cause,
                });
            }
        };
        group.ended();
        if !stderr.is_empty() {
            let text = String::from_utf8_lossy(&stderr);
            tracing::info!(
                plugin = self.kind,
                verb = self.verb.as_str(),
                "CNI plugin stderr: {}",
                text.trim()
            );
        }
        if status.success() {
            return Ok(stdout);
        }
        let PluginError { code, message } = parse_error(&stdout, &stderr);
        let (kind, verb) = (self.kind.to_owned(), self.verb.as_str());
        Err(CniError::Plugin {
            kind,
            verb,
            code,
            message,
        })
    }

    /// Starts the program; retries while an installer writes it.
    async fn spawn(&self, path: &Path) -> Result<Child, CniError> {
        let mut command = Command::new(path);
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        command
            .env("CNI_COMMAND", self.verb.as_str())
            .env("CNI_PATH", join(self.bin_dirs, ":"))
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let not_started = |cause| CniError::NotStarted {
            path: path.to_owned(),
            verb: self.verb.as_str(),
            cause,
        };
        let mut retries = BUSY_RETRIES;
        loop {
            // The kernel reads the program before this returns. A child that is too late is killed.
            let spawning = spawn_blocking(move || (command.spawn(), command));
            let spawned = timeout_at(self.deadline, spawning).await;
            let spawned = spawned.map_err(|late| not_started(late.into()))?;
            let (spawned, again) = spawned.map_err(|broken| not_started(broken.into()))?;
            command = again;
            match spawned {
                Err(error)
                    if error.kind() == io::ErrorKind::ExecutableFileBusy
                        && retries > 0
                        && Instant::now() + BUSY_PAUSE < self.deadline =>
                {
                    retries -= 1;
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                spawned => return spawned.map_err(not_started),
            }
        }
    }

    /// Writes the plugin's input and reads its outputs until they are closed and it has ended.
    async fn talk(&self, child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A plugin may leave input unread; its result reports success.
                let _ = stdin.write_all(&self.input).await;
            }
            Ok(())
        };
        let ((), stdout, stderr) = tokio::try_join!(
            feed,
            read_strictly(stdout, STDOUT_MAX),
            read_some(stderr, STDERR_MAX)
        )?;
        Ok((ended(child).await?, stdout, stderr))
    }
}

/// The number of the plugin and its group; `None` after it was reaped.
fn number(child: &Child) -> Option<Pid> {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    id.and_then(Pid::from_raw)
}

/// Waits for a plugin's end. If it failed, its group is killed before its number is released.
async fn ended(child: &mut Child) -> io::Result<ExitStatus> {
    let Some(pid) = number(child) else {
        return child.wait().await;
    };
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    // Deprecated because some descriptor types can close or change; an OwnedFd cannot.
    #[expect(deprecated)]
    let pidfd = AsyncFd::with_interest(pidfd, Interest::READABLE)?;
    drop(pidfd.readable().await?);
    let unreaped = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let seen = waitid(WaitId::Pid(pid), unreaped)?;
    let failed = seen.is_none_or(|status| status.exit_status() != Some(0));
    if failed {
        // The unreaped plugin itself is in the group.
        kill_process_group(pid, Signal::KILL)?;
    }
    let status = child.wait().await?;
    if failed {
        await_end(pid).await;
    }
    Ok(status)
}

/// Waits for the end of a killed group, except for processes that the kernel cannot end.
async fn await_end(group: Pid) {
    let deadline = Instant::now() + ENDING;
    while test_kill_process_group(group).is_ok() && Instant::now() < deadline {
        tokio::time::sleep(ENDING_PAUSE).await;
    }
}

/// Reads a complete stream of at most `most` bytes.
async fn read_strictly(from: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(most + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("wrote more than {most} bytes")));
    }
    Ok(bytes)
}

/// Reads the start of a stream and discards the rest, so that the writer does not block.
async fn read_some(from: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        (&mut from).take(most).read_to_end(&mut bytes).await?;
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

fn join(dirs: &[PathBuf], separator: &str) -> String {
    dirs.iter()
        .map(|dir| dir.display().to_string())
        .collect::<Vec<_>>()
        .join(separator)
}

/// Kills the plugin's process group when dropped before [`Group::ended`]. It must be dropped before
/// its child handle: until that reaps the process, the number is not reused.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(number(child))
    }

    /// Kills the group and waits for its end.
    async fn end(self, child: &mut Child) {
        let group = self.0;
        drop(self);
        let _ = tokio::time::timeout(ENDING, child.wait()).await; // the group may take longer
        if let Some(group) = group {
            await_end(group).await;
        }
    }

    /// The plugin has been reaped: its number may be reused.
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may have just ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
