//! Errors between the daemon and a monitor.

use std::io;
use std::path::PathBuf;

/// Each names the container, the step and the cause, in one line.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The monitor (or `cairn-create`, or the kernel below it) said no. `text` is what it said.
    #[error("container {id}: {step}: {text}")]
    Refused {
        id: String,
        step: &'static str,
        text: String,
    },
    /// The connection ended before the answer came: the monitor is gone.
    #[error("container {id}: {step}: its monitor is gone")]
    Lost { id: String, step: &'static str },
    #[error("container {id}: {step}: no answer from its monitor within {seconds} s")]
    Silent {
        id: String,
        step: &'static str,
        seconds: u64,
    },
    #[error(
        "container {id}: {step}: its monitor uses protocol version {version}, this daemon {ours}"
    )]
    Version {
        id: String,
        step: &'static str,
        version: u16,
        ours: u16,
    },
    #[error("container {id}: {step}: unexpected answer from its monitor")]
    Protocol { id: String, step: &'static str },
    #[error(
        "container {id}: {step}: its streams could not be taken over: too many open files; raise the daemon's LimitNOFILE"
    )]
    Descriptors { id: String, step: &'static str },
    /// Only from `exec_sync`: everything in the session was killed (CRI-139).
    #[error("container {id}: exec: timed out after {millis} ms")]
    ExecTimedOut { id: String, millis: u64 },
    #[error("{step} {path}: {cause}")]
    File {
        step: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
    #[error("helpers: {0}")]
    Helpers(String),
}

impl MonitorError {
    pub(super) fn file(
        step: &'static str,
        path: impl Into<PathBuf>,
        cause: impl Into<io::Error>,
    ) -> MonitorError {
        MonitorError::File {
            step,
            path: path.into(),
            cause: cause.into(),
        }
    }
}
