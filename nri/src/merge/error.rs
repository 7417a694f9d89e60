//! Errors of merging an answer.

use proto_nri::Field;

use crate::{owners::Conflict, place::path, plugin_id::PluginId, policy::Outcome};

/// Error of merging an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error(transparent)]
    Conflict(#[from] Box<Conflict>),
    /// NRI-540.
    #[error("plugin {plugin} updates container {container}, which is still being created")]
    UpdatesCreated { plugin: PluginId, container: String },
    /// NRI-570.
    #[error("plugin {plugin} evicts container {container}, which is still being created")]
    EvictsCreated { plugin: PluginId, container: String },
    #[error("plugin {plugin} sets {}: {why}", path(*field, Some(key)))]
    BadKey {
        plugin: PluginId,
        field: Field,
        key: String,
        why: &'static str,
    },
    /// In an answer to RunPodSandbox.
    #[error("plugin {plugin} sets adjust.network.ips {ip:?}: {why}")]
    BadIp {
        plugin: PluginId,
        ip: String,
        why: &'static str,
    },
    #[error(
        "plugin {plugin} sets adjust.network.ips: more than 32 addresses for one pod ({named} or more)"
    )]
    TooManyIps { plugin: PluginId, named: usize },
}

impl MergeError {
    /// The outcome of the answer.
    pub(crate) fn outcome(&self) -> Outcome {
        let why = self.to_string();
        match self {
            Self::Conflict(_) => Outcome::Conflict(why),
            _ => Outcome::Invalid(why),
        }
    }
}
