//! Errors of a plugin's start, and reasons of its end.

use std::{fmt, io, path::PathBuf, time::Duration};

use crate::{
    plugin_id::BadPluginId,
    wire::{
        process::ENV_SOCKET,
        rpc::{CallError, Status},
    },
};

/// As text, because a `main` that returns it prints it.
impl fmt::Debug for StubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error of starting a plugin, or the reason of its end.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StubError {
    #[error("a plugin needs a handler for at least one event")]
    NoHandlers,
    #[error("plugin identity: {0}")]
    Identity(#[from] BadPluginId),
    /// The plugin was not launched, has no `index`, and the name of its file has none.
    #[error(
        "no index for this plugin: no runtime launched it, the program does not call index(), and its file name {file:?} \
         is not NN-name, such as \"10-{file}\""
    )]
    NoIndex { file: String },
    /// Of the runtime that launched the plugin, then by `index`.
    #[error(
        "plugin index {1:?} is not {0:?}, by which the runtime launched this plugin: call index() only in a plugin that connects"
    )]
    IndexTwice(String, String),
    #[error("{ENV_SOCKET}={value:?}: {cause}")]
    InheritedSocket { value: String, cause: io::Error },
    #[error("cannot connect to {path}: {cause}")]
    Connect { path: PathBuf, cause: io::Error },
    #[error("cannot serve the connection: {0}")]
    Serve(io::Error),
    #[error("the runtime refused the registration: {0}")]
    Register(CallError),
    /// The connection ended first, for this reason.
    #[error("the runtime did not configure the plugin: {0}")]
    NotConfigured(String),
    #[error("the runtime did not configure the plugin within {0:?}")]
    ConfigureTimeout(Duration),
    /// By the plugin.
    #[error("configuration refused: {0}")]
    Configure(Status),
    /// By the plugin.
    #[error("synchronisation refused: {0}")]
    Synchronize(Status),
    #[error("the connection has ended: {0}")]
    Ended(String),
    /// By Shutdown.
    #[error("the runtime has ended the connection")]
    Dismissed,
}

impl StubError {
    /// True for errors that a retry cannot fix: the plugin itself is wrong.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::NoHandlers | Self::Identity(_) | Self::NoIndex { .. } | Self::IndexTwice(..)
        )
    }
}
