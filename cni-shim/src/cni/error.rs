//! Errors of CNI networks.

use std::io;
use std::path::PathBuf;

/// Error of a CNI ADD, DEL, GC or STATUS.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    #[error("CNI plugin {kind}: not found in {dirs}")]
    PluginMissing { kind: String, dirs: String },
    /// The program is on a file system that does not answer.
    #[error("CNI plugin {kind}: {reason}")]
    Unanswered { kind: String, reason: String },
    #[error("CNI plugin {} {verb}: cannot be started: {cause}", path.display())]
    NotStarted {
        path: PathBuf,
        verb: &'static str,
        cause: io::Error,
    },
    /// Of the kind `TimedOut` if it was killed at its deadline.
    #[error("CNI plugin {kind} {verb}: {cause}")]
    Talk {
        kind: String,
        verb: &'static str,
        cause: io::Error,
    },
    /// The plugin's own error (CRI-519).
    #[error("CNI plugin {kind} {verb}: code {code}: {message}")]
    Plugin {
        kind: String,
        verb: &'static str,
        code: u64,
        message: String,
    },
    #[error("CNI plugin {kind} ADD: result: {reason}")]
    Result { kind: String, reason: String },
    #[error("CNI network {network}: {reason}")]
    Network { network: String, reason: String },
    #[error("CNI network {network}: result cache: {cause}")]
    Cache { network: String, cause: io::Error },
}

/// "Try again later".
const AGAIN: u64 = 11;

impl CniError {
    /// Whether the plugin requests a retry (CRI-519).
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, CniError::Plugin { code: AGAIN, .. })
    }
}
