//! Interface to the runtime: its pods and containers, and updates and evictions requested by
//! plugins.

use std::pin::Pin;

use proto_nri::{Container, ContainerUpdate, PodSandbox};

use crate::owners::PluginId;

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

/// The runtime, as plugins reach it.
pub trait Source: Send + Sync + 'static {
    /// All objects at one moment: called under a mutex that every dispatch passes. Do not block, do
    /// not call the [`Adaptation`](crate::Adaptation), and hold no lock that this takes while you
    /// call it.
    fn snapshot(&self) -> Snapshot;

    /// Applies updates at once, in any state of the containers' pods, and returns those that
    /// failed, with the reason. Wait neither for a pod's operation nor for the
    /// [`Turn`](crate::Turn): either may be waiting for the plugin that asks.
    fn update(&self, updates: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<FailedUpdate>>;

    /// Accepts a plugin's request to stop a container, with its reason. Does not wait for the end.
    fn evict(
        &self,
        plugin: &PluginId,
        container: String,
        reason: String,
    ) -> BoxFuture<'_, Result<(), String>>;
}
