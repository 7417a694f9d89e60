//! Interface to the runtime: its pods and containers, and updates and evictions requested by
//! plugins.

use std::pin::Pin;

use proto_nri::{Container, ContainerUpdate, Field, PodSandbox};

use crate::{
    merge::{Askers, Share},
    owners::Owners,
    plugin_id::PluginId,
};

/// A boxed future, as [`Source`] returns it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Pods and containers of a runtime.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Pods that are running, or stopped but not removed.
    pub pods: Vec<PodSandbox>,
    /// Containers that are created, running or paused.
    pub containers: Vec<Container>,
}

/// Why an update outside the permissions of its plugin failed.
pub(crate) const NOT_PERMITTED: &str = "not permitted";

/// An update that could not be applied.
#[derive(Debug, Clone)]
pub struct FailedUpdate {
    pub update: ContainerUpdate,
    /// One line.
    pub why: String,
}

impl FailedUpdate {
    pub fn new(update: ContainerUpdate, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { update, why }
    }
}

/// The requester of updates, and the call.
#[derive(Debug, Clone, Default)]
pub struct Requester {
    /// `Synchronize`, `UpdateContainers`, or the event whose answers have the updates.
    pub call: &'static str,
    one: Option<PluginId>,
    askers: Askers,
    owners: Owners,
}

impl Requester {
    /// One plugin requests all of them.
    pub fn one(call: &'static str, plugin: &PluginId) -> Self {
        Self {
            call,
            one: Some(plugin.clone()),
            ..Self::default()
        }
    }

    /// They are merged from the answers of several plugins.
    pub fn merged(call: &'static str, askers: &Askers, owners: &Owners) -> Self {
        Self {
            call,
            one: None,
            askers: askers.clone(),
            owners: owners.clone(),
        }
    }

    /// Plugins that request the update of a container, in call order.
    pub fn of_update(&self, container: &str) -> Vec<PluginId> {
        match &self.one {
            Some(plugin) => vec![plugin.clone()],
            None => self.askers.of_update(container),
        }
    }

    /// The parts of an update by plugin, in call order. Apply each alone, so that a bad value of one
    /// plugin costs no other plugin its update.
    pub fn shares(&self, update: &ContainerUpdate) -> Vec<Share> {
        match &self.one {
            Some(plugin) => vec![Share {
                plugin: plugin.clone(),
                update: update.clone(),
            }],
            None => self.askers.shares(&update.container_id).to_vec(),
        }
    }

    /// Plugins that request the eviction of a container, in call order.
    pub fn of_eviction(&self, container: &str) -> &[PluginId] {
        self.askers.of_eviction(container)
    }

    /// Whether this value in the update of a container is the plugin's.
    pub fn has_set(
        &self,
        plugin: &PluginId,
        container: &str,
        field: Field,
        key: Option<&str>,
    ) -> bool {
        let owner = self.owners.container(container).and_then(|of| match key {
            Some(key) => of.owner_of(field, key),
            None => of.owner(field),
        });
        self.one.is_some() || owner.is_some_and(|owner| owner.plugins().contains(plugin))
    }
}

/// The runtime, as plugins reach it.
pub trait Source: Send + Sync + 'static {
    /// All objects at one moment: called under a mutex that every dispatch passes. Do not block, do
    /// not call the [`Adaptation`](crate::Adaptation), and hold no lock that this takes while you
    /// call it.
    fn snapshot(&self) -> Snapshot;

    /// Applies updates at once, in any state of the containers' pods, and returns the failed ones
    /// with their reasons. Do not wait for a pod's operation or for the [`Turn`](crate::Turn):
    /// either may be waiting for the requesting plugin.
    fn update(
        &self,
        by: &Requester,
        updates: Vec<ContainerUpdate>,
    ) -> BoxFuture<'_, Vec<FailedUpdate>>;

    /// Accepts a plugin's request to stop a container, with its reason. Does not wait for the end.
    fn evict(
        &self,
        plugin: &PluginId,
        container: String,
        reason: String,
    ) -> BoxFuture<'_, Result<(), String>>;
}
