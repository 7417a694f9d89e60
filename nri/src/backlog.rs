//! Backlog of must-run plugins: Stop and Remove events they have not acknowledged, kept until
//! they have, or ten minutes (O-1).
//!
//! An event is kept by `dispatch.rs` when `policy.rs` says so, and taken out when the plugin joins
//! again, after its Synchronize and before its next event.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use proto_nri::{
    Event, RemoveContainerRequest, RemovePodSandboxRequest, StopContainerRequest,
    StopPodSandboxRequest,
};
use tokio::time::Instant;

use crate::{owners::PluginId, violate, wire::event::HookRequest};

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
pub(crate) struct Backlog(Mutex<BTreeMap<PluginId, VecDeque<(Instant, Kept)>>>);

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PluginId, VecDeque<(Instant, Kept)>>> {
        self.0.lock()
    }

    /// Keeps an event for a plugin; gives those that had to be given up for it.
    pub(crate) fn keep(&self, plugin: &PluginId, event: Kept) -> Vec<Event> {
        let mut all = self.lock();
        let kept = all.entry(plugin.clone()).or_default();
        let mut given_up = expire(kept);
        if kept.len() >= MAX_KEPT {
            given_up.extend(kept.pop_front().map(|(_, event)| event.event()));
        }
        match event {
            _ if violate::is("missed-events-lost") => {}
            event if violate::is("missed-events-reversed") => {
                kept.push_front((Instant::now(), event));
            }
            event => kept.push_back((Instant::now(), event)),
        }
        given_up
    }

    /// Takes out what is too old.
    pub(crate) fn expired(&self, plugin: &PluginId) -> Vec<Event> {
        self.lock().get_mut(plugin).map(expire).unwrap_or_default()
    }

    /// The oldest event that is not too old; it stays until [`Backlog::acknowledged`].
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

fn expire(kept: &mut VecDeque<(Instant, Kept)>) -> Vec<Event> {
    let mut given_up = Vec::new();
    while kept.front().is_some_and(|(at, _)| at.elapsed() >= KEEP) {
        given_up.extend(kept.pop_front().map(|(_, event)| event.event()));
    }
    given_up
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(pod: &str) -> Kept {
        let pod = proto_nri::PodSandbox {
            id: pod.into(),
            ..Default::default()
        };
        Kept::StopPod(StopPodSandboxRequest { pod: Some(pod) })
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_kept_in_order_for_ten_minutes() {
        let (backlog, plugin) = (Backlog::default(), "10-a".parse().unwrap());
        assert!(backlog.keep(&plugin, stop("p")).is_empty());
        tokio::time::advance(KEEP - Duration::from_secs(1)).await;
        backlog.keep(&plugin, stop("q"));
        assert_eq!(backlog.backlog(&plugin), 2);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(backlog.expired(&plugin), [Event::StopPodSandbox]);
        let Some(Kept::StopPod(oldest)) = backlog.oldest(&plugin) else {
            panic!("the younger one is gone too");
        };
        assert_eq!(oldest.pod.unwrap().id, "q");
        backlog.acknowledged(&plugin);
        assert_eq!(backlog.backlog(&plugin), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_backlog_gives_up_the_oldest_and_says_so() {
        let (backlog, plugin) = (Backlog::default(), "10-a".parse().unwrap());
        for n in 0..MAX_KEPT {
            assert!(backlog.keep(&plugin, stop(&n.to_string())).is_empty());
        }
        assert_eq!(backlog.keep(&plugin, stop("new")), [Event::StopPodSandbox]);
        assert_eq!(backlog.backlog(&plugin), MAX_KEPT);
    }
}
