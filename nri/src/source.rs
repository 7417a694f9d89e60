//! Interface to the runtime: its pods and containers, and the updates and evictions that plugins ask for.

use std::pin::Pin;

use proto_nri::{Container, ContainerUpdate, PodSandbox};

use crate::owners::PluginId;

/// A future in a box, as [`Source`] gives it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Pods and containers of a runtime.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Pods that are up, also stopped ones that are not removed yet.
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
    /// All there is, at once: called under a mutex that every dispatch passes. Do not block, do not
    /// call the [`Adaptation`](crate::Adaptation), and hold no lock it takes while you call the [`Adaptation`](crate::Adaptation).
    fn snapshot(&self) -> Snapshot;

    /// Applies updates at once, whatever state the containers' pods are in, and returns those that
    /// could not be applied, and why. Wait neither for a pod's operation nor for the [`Turn`](crate::Turn): either may be
    /// waiting for the plugin that asks.
    fn update(&self, updates: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<FailedUpdate>>;

    /// Takes a plugin's wish to stop a container, with its reason. Does not wait for the end of it.
    fn evict(
        &self,
        plugin: &PluginId,
        container: String,
        reason: String,
    ) -> BoxFuture<'_, Result<(), String>>;
}
