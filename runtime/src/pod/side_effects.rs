//! Updates and evictions of other containers that plugins ask for: in the answer to an event, or of their own
//! accord. The one place that applies them.

use std::{sync::Arc, time::Duration};

use proto_nri::{ContainerEviction, ContainerUpdate};

use super::{
    error::Result,
    registry::Registry,
    request::ContainerWork,
    resources::{ResourceChange, ResourceWriter},
};
use crate::violate;

/// What plugins want of containers that the event was not about.
#[derive(Debug, Default)]
pub struct SideEffects {
    pub updates: Vec<ContainerUpdate>,
    pub evictions: Vec<ContainerEviction>,
}

/// Reaches every container of every pod.
#[derive(Clone)]
pub struct Others {
    pub registry: Arc<Registry>,
    pub resources: Arc<ResourceWriter>,
}

impl Others {
    /// Evictions first, since they are not awaited.
    pub async fn apply(&self, wanted: &SideEffects) {
        for eviction in &wanted.evictions {
            if let Err(error) = self.evict(&eviction.container_id, &eviction.reason) {
                tracing::warn!(container = %eviction.container_id, %error, "eviction");
            }
        }
        self.update(&wanted.updates).await;
    }

    /// Into the other pod's queue, not awaited; the container is stopped without grace (NRI-570).
    ///
    /// # Errors
    /// There is no such container.
    pub fn evict(&self, id: &str, reason: &str) -> Result<()> {
        let (pod, container) = self.registry.container(id)?;
        tracing::info!(container = %container.id, reason, "evicted by a plugin");
        // The first reason counts.
        let _ = container.evicted.set(reason.to_owned());
        let grace = match violate::is("evicted-with-grace") {
            true => Duration::from_secs(30),
            false => Duration::ZERO,
        };
        pod.post_container(&container.id, ContainerWork::Stop { grace });
        Ok(())
    }

    /// At once, waiting for no pod; a failure is logged and the rest goes on.
    /// Returns those that failed and were not to be ignored.
    pub async fn update(&self, updates: &[ContainerUpdate]) -> Vec<ContainerUpdate> {
        let mut failed = Vec::new();
        for update in updates {
            let linux = update.linux.as_ref();
            let Some(resources) = linux.and_then(|linux| linux.resources.clone()) else {
                continue;
            };
            let change = ResourceChange {
                nri: Some(resources),
                ..ResourceChange::default()
            };
            let result = match self.registry.container(&update.container_id) {
                Ok((_, container)) => self.resources.write(&container, &change).await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                tracing::warn!(container = %update.container_id, %error, "update by a plugin");
                if !update.ignore_failure {
                    failed.push(update.clone());
                }
            }
        }
        failed
    }
}
