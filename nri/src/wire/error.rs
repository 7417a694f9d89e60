//! Failures of a socket, the plugin directory or a plugin's process.

use std::{io, path::PathBuf};

use crate::plugin_id::PluginId;

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
