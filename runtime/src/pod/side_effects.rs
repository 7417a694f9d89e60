//! Updates and evictions of other containers that plugins ask for: in the answer to an event, or of their own
//! accord. The one place that applies them.

use std::{sync::Arc, time::Duration};

use nri::{PluginId, merge::Askers};
use proto_nri::{ContainerEviction, ContainerUpdate};

use super::{
    error::{Error, Result},
    event_log::did,
    registry::Registry,
    request::ContainerWork,
    resources::ResourceWriter,
    state::Eviction,
};
use crate::trace::{Action, EventLog};

/// What plugins want of containers that the event was not about.
#[derive(Debug, Default)]
pub struct SideEffects {
    pub updates: Vec<ContainerUpdate>,
    pub evictions: Vec<ContainerEviction>,
    pub askers: Askers,
}

/// One of them could not be had.
pub struct Failed {
    pub plugins: Vec<PluginId>,
    /// Id of the container.
    pub target: String,
    pub why: String,
}

/// Reaches every container of every pod.
#[derive(Clone)]
pub struct Others {
    pub registry: Arc<Registry>,
    pub resources: Arc<ResourceWriter>,
    pub log: EventLog,
}

impl Others {
    /// Evictions first, since they are not awaited. Returns what could not be had.
    pub async fn apply(&self, wanted: &SideEffects) -> Vec<Failed> {
        let mut all = Vec::new();
        for ContainerEviction {
            container_id: target,
            reason,
        } in &wanted.evictions
        {
            let plugins = wanted.askers.of_eviction(target).to_vec();
            let names: Vec<String> = plugins.iter().map(ToString::to_string).collect();
            if let Err(error) = self.evict(&names.join(", "), target, reason) {
                all.push(Failed {
                    plugins,
                    target: target.clone(),
                    why: format!("eviction failed: {error}"),
                });
            }
        }
        for (update, error) in self.update(&wanted.updates).await {
            let target = update.container_id;
            all.push(Failed {
                plugins: wanted.askers.of_update(&target).to_vec(),
                target,
                why: format!("update failed: {error}"),
            });
        }
        all
    }

    /// Into the other pod's queue, not awaited; the container is stopped without grace (NRI-570).
    ///
    /// # Errors
    /// There is no such container.
    pub fn evict(&self, plugin: &str, id: &str, reason: &str) -> Result<()> {
        let (pod, container) = self.registry.find_container(id)?;
        tracing::info!(plugin, container = %container.id, reason, "evicted by a plugin");
        let (plugin, reason) = (plugin.to_owned(), reason.to_owned());
        let evicted = Action::Evicted {
            plugin: plugin.clone(),
            reason: reason.clone(),
        };
        did(&self.log, &pod, Some(&container), evicted);
        // The first counts.
        let _ = container.evicted.set(Eviction { plugin, reason });
        let grace = Duration::ZERO;
        pod.post_container(&container.id, ContainerWork::Stop { grace });
        Ok(())
    }

    /// At once, waiting for no pod; after a failure the rest goes on.
    /// Returns those that failed and were not to be ignored, for the caller to log with their plugin. One that changes nothing fails too where there is no such
    /// container: whoever sent it believes in one.
    pub async fn update(&self, updates: &[ContainerUpdate]) -> Vec<(ContainerUpdate, Error)> {
        let mut failed = Vec::new();
        for update in updates {
            let linux = update.linux.as_ref();
            let resources = linux.and_then(|linux| linux.resources.as_ref());
            let found = self.registry.find_container(&update.container_id);
            let result = match (found, resources) {
                (Ok((_, container)), Some(_)) => {
                    self.resources.write(&container, None, resources).await
                }
                (Ok(_), None) => Ok(()),
                (Err(error), _) => Err(error),
            };
            match result {
                Ok(()) => {}
                Err(error) if update.ignore_failure => {
                    tracing::debug!(container = %update.container_id, %error, "update by a plugin that ignores its failure");
                }
                Err(error) => failed.push((update.clone(), error)),
            }
        }
        failed
    }
}
