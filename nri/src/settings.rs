//! How a runtime wants NRI: paths, limits, and how each plugin is treated. Go's behaviour unless
//! said otherwise.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use crate::{owners::PluginId, policy::PluginPolicy};

/// Where runtimes listen and plugins connect.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";
/// Where launched plugins are.
pub const DEFAULT_PLUGIN_DIR: &str = "/opt/nri/plugins";
/// Where their configurations are.
pub const DEFAULT_PLUGIN_CONFIG_DIR: &str = "/etc/nri/conf.d";

/// Whether a launched plugin that died is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restart {
    /// Never, as in Go.
    #[default]
    No,
    /// When its connection is lost or it timed out: after 1 s, then ever later, up to a minute.
    OnFailure,
}

/// How one plugin is treated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PluginSettings {
    pub policy: PluginPolicy,
    pub restart: Restart,
}

/// Everything a runtime can say about NRI.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `None`: no external connections (NRI-210).
    pub socket: Option<PathBuf>,
    /// Permission bits of the socket (NRI-101).
    pub socket_mode: u32,
    /// User ids that may connect.
    pub allowed_uids: Vec<u32>,
    /// `None`, or a directory that is not there: no launched plugins.
    pub plugin_dir: Option<PathBuf>,
    pub plugin_config_dir: Option<PathBuf>,
    /// Plugin files must belong to root and not be writable by others.
    pub trusted_files_only: bool,
    /// From connect to RegisterPlugin.
    pub registration_timeout: Duration,
    /// For one event at one plugin, and for Configure.
    pub request_timeout: Duration,
    /// For one chunk of Synchronize; all of them together have three times as long.
    pub sync_timeout: Duration,
    /// By id, `10-name`.
    pub plugins: BTreeMap<PluginId, PluginSettings>,
    /// A newer v1alpha1 plugin with the same id replaces the older too (NRI-1070); v1beta1 always.
    pub replace_same_name: bool,
    /// A pod with this annotation set to `true` is let through without required plugins.
    pub tolerate_missing_annotation: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket: Some(DEFAULT_SOCKET.into()),
            socket_mode: 0o600,
            allowed_uids: vec![0],
            plugin_dir: Some(DEFAULT_PLUGIN_DIR.into()),
            plugin_config_dir: Some(DEFAULT_PLUGIN_CONFIG_DIR.into()),
            trusted_files_only: true,
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            sync_timeout: Duration::from_secs(10),
            plugins: BTreeMap::new(),
            replace_same_name: false,
            tolerate_missing_annotation: None,
        }
    }
}

impl Settings {
    /// How this plugin is treated.
    pub fn plugin(&self, id: &PluginId) -> PluginSettings {
        self.plugins.get(id).cloned().unwrap_or_default()
    }

    /// How long this plugin has for one event.
    pub(crate) fn request_timeout(&self, policy: &PluginPolicy) -> Duration {
        policy.request_timeout.unwrap_or(self.request_timeout)
    }

    /// How long it has for one chunk of Synchronize.
    pub(crate) fn sync_timeout(&self, policy: &PluginPolicy) -> Duration {
        policy.sync_timeout.unwrap_or(self.sync_timeout)
    }
}
