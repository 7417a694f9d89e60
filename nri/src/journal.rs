//! What must-run plugins have missed: Stop and Remove events they have not acknowledged, kept until
//! they have, or ten minutes (O-1).
//!
//! An event is kept by `chain.rs` when `policy.rs` says so, and taken out when the plugin joins
//! again, after its Synchronize and before its next event.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use proto_nri::{
    Event, RemoveContainerRequest, RemovePodSandboxRequest, StopContainerRequest,
    StopPodSandboxRequest,
};
use tokio::time::Instant;

use crate::{event::HookRequest, owners::PluginId};

/// How long an event is kept.
pub(crate) const KEEP: Duration = Duration::from_secs(600);
/// How many are kept for one plugin; the oldest goes first.
pub(crate) const MAX_KEPT: usize = 4096;

/// A teardown event.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    StopPod(StopPodSandboxRequest),
    RemovePod(RemovePodSandboxRequest),
    StopContainer(StopContainerRequest),
    RemoveContainer(RemoveContainerRequest),
}

impl Kept {
    /// `None` if it is no teardown event.
    pub(crate) fn of<R: HookRequest>(request: &R) -> Option<Self> {
        let pod = request.pod().cloned();
        let container = request.container().cloned();
        match R::EVENT {
            Event::StopPodSandbox => Some(Self::StopPod(StopPodSandboxRequest { pod })),
            Event::RemovePodSandbox => Some(Self::RemovePod(RemovePodSandboxRequest { pod })),
            Event::StopContainer => {
                Some(Self::StopContainer(StopContainerRequest { pod, container }))
            }
            Event::RemoveContainer => Some(Self::RemoveContainer(RemoveContainerRequest {
                pod,
                container,
            })),
            _ => None,
        }
    }

    pub(crate) fn event(&self) -> Event {
        match self {
            Self::StopPod(_) => Event::StopPodSandbox,
            Self::RemovePod(_) => Event::RemovePodSandbox,
            Self::StopContainer(_) => Event::StopContainer,
            Self::RemoveContainer(_) => Event::RemoveContainer,
        }
    }
}

/// The events kept, per plugin, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Journal(Mutex<BTreeMap<PluginId, VecDeque<(Instant, Kept)>>>);

impl Journal {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PluginId, VecDeque<(Instant, Kept)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an event for a plugin.
    pub(crate) fn keep(&self, plugin: &PluginId, event: Kept) {
        let mut all = self.lock();
        let kept = all.entry(plugin.clone()).or_default();
        expire(kept);
        if kept.len() >= MAX_KEPT {
            tracing::warn!(%plugin, "more than {MAX_KEPT} events kept: the oldest is given up");
            kept.pop_front();
        }
        kept.push_back((Instant::now(), event));
    }

    /// The oldest event that is not too old; it stays until [`Journal::acknowledged`].
    pub(crate) fn oldest(&self, plugin: &PluginId) -> Option<Kept> {
        let mut all = self.lock();
        let kept = all.get_mut(plugin)?;
        expire(kept);
        kept.front().map(|(_, event)| event.clone())
    }

    /// The oldest event has arrived.
    pub(crate) fn acknowledged(&self, plugin: &PluginId) {
        if let Some(kept) = self.lock().get_mut(plugin) {
            kept.pop_front();
        }
    }

    /// How many are kept for a plugin.
    pub(crate) fn backlog(&self, plugin: &PluginId) -> usize {
        let mut all = self.lock();
        all.get_mut(plugin).map_or(0, |kept| {
            expire(kept);
            kept.len()
        })
    }
}

fn expire(kept: &mut VecDeque<(Instant, Kept)>) {
    while kept.front().is_some_and(|(at, _)| at.elapsed() >= KEEP) {
        kept.pop_front();
    }
}
