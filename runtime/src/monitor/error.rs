//! Errors between the daemon and a monitor.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cairn_monitor::codec::VERSION;

/// Each error names the container, the step and the cause, in one line.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    #[error("container {id}: {step}: {why}")]
    Container {
        id: String,
        step: &'static str,
        why: Why,
    },
    /// Returned only by `exec_sync`: all processes of the session were killed (CRI-139).
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
    /// Returns the cause alone, for an error that already names the container and the step.
    pub fn cause(&self) -> String {
        match self {
            Self::Container { why, .. } => why.to_string(),
            other => other.to_string(),
        }
    }
}

/// The cause of a failed request to a monitor.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The monitor (or `cairn-create`, or the kernel) rejected the request with this text.
    #[error("{0}")]
    Refused(String),
    /// The connection ended before the answer.
    #[error("its monitor is gone")]
    Lost,
    #[error("no answer from its monitor within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("its monitor uses protocol version {0}, this daemon {ours}", ours = VERSION)]
    Version(u16),
    #[error("unexpected answer from its monitor")]
    Protocol,
    #[error(
        "its streams could not be taken over: too many open files; raise the daemon's LimitNOFILE"
    )]
    Descriptors,
    #[error(
        "killed: the output of all ExecSync calls together takes {} MiB, the most it may: write less, or try again",
        .0 >> 20
    )]
    Budget(usize),
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
