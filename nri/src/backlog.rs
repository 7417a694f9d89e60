//! Backlog of must-run plugins: unacknowledged Stop and Remove events. An event is kept until it is
//! acknowledged, for ten minutes, or until two more attempts at it have failed (O-1).
//!
//! `dispatch.rs` keeps an event when `policy.rs` decides so. `kept.rs` sends it again.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use proto_nri::{
    Event, RemoveContainerRequest, RemovePodSandboxRequest, StopContainerRequest,
    StopPodSandboxRequest,
};
use tokio::time::Instant;

use crate::{
    plugin::Session,
    plugin_id::PluginId,
    wire::event::{HookRequest, container_id, pod_id},
};

/// Age at which an event is dropped.
pub(crate) const KEEP: Duration = Duration::from_secs(600);
/// Events kept for one plugin; the oldest is dropped first.
pub(crate) const MAX_KEPT: usize = 4096;
/// Failed resends of one event before it is dropped.
const MAX_TRIES: u32 = 2;

/// A teardown event.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    StopPod(StopPodSandboxRequest),
    RemovePod(RemovePodSandboxRequest),
    StopContainer(StopContainerRequest),
    RemoveContainer(RemoveContainerRequest),
}

impl Kept {
    /// `None` if it is not a teardown event.
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

    fn about(&self) -> About {
        match self {
            Self::StopPod(request) => About::of(request),
            Self::RemovePod(request) => About::of(request),
            Self::StopContainer(request) => About::of(request),
            Self::RemoveContainer(request) => About::of(request),
        }
    }
}

/// An event and its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct About {
    event: Event,
    pod: String,
    /// Empty for events of pods.
    container: String,
}

impl About {
    pub(crate) fn of<R: HookRequest>(request: &R) -> Self {
        Self {
            event: R::EVENT,
            pod: pod_id(request).to_owned(),
            container: container_id(request).to_owned(),
        }
    }

    /// Whether this event concerns the other's object, or a container of that pod.
    fn is_of(&self, object: &Self) -> bool {
        self.pod == object.pod
            && (object.container.is_empty() || self.container == object.container)
    }

    fn ends_object(&self) -> bool {
        matches!(self.event, Event::RemovePodSandbox | Event::RemoveContainer)
    }
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    about: About,
    event: Kept,
    /// Number of failed resends.
    tries: u32,
    /// The instance that may still answer late; it is not called again meanwhile.
    owed_by: Weak<Session>,
}

impl Entry {
    fn is_owed_by(&self, session: &Arc<Session>) -> bool {
        std::ptr::eq(self.owed_by.as_ptr(), Arc::as_ptr(session))
    }
}

/// The events kept, per plugin, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Backlog(Mutex<BTreeMap<PluginId, VecDeque<Entry>>>);

impl Backlog {
    /// Drops expired entries, then runs `work` on the plugin's backlog, if any; also returns the
    /// expired.
    fn with<T: Default>(
        &self,
        plugin: &PluginId,
        work: impl FnOnce(&mut VecDeque<Entry>) -> T,
    ) -> (T, Vec<Event>) {
        let mut all = self.0.lock();
        let Some(kept) = all.get_mut(plugin) else {
            return (T::default(), Vec::new());
        };
        let mut expired = Vec::new();
        while kept.front().is_some_and(|entry| entry.at.elapsed() >= KEEP) {
            expired.extend(kept.pop_front().map(|entry| entry.about.event));
        }
        let result = work(kept);
        if kept.is_empty() {
            all.remove(plugin);
        }
        (result, expired)
    }

    /// Keeps an event for a plugin. `tried`: a call has failed. `owed_by` may answer late. Returns
    /// the events that were dropped for it.
    pub(crate) fn keep(
        &self,
        plugin: &PluginId,
        event: Kept,
        tried: bool,
        owed_by: Option<&Arc<Session>>,
    ) -> Vec<Event> {
        let owed_by = owed_by.map_or_else(Weak::new, Arc::downgrade);
        let about = event.about();
        self.0.lock().entry(plugin.clone()).or_default();
        let (given_up, mut expired) = self.with(plugin, |kept| {
            if let Some(at) = kept.iter().position(|entry| entry.about == about) {
                let entry = &mut kept[at];
                entry.tries += u32::from(tried);
                entry.owed_by = owed_by;
                let failed = entry.tries >= MAX_TRIES;
                return failed.then(|| kept.remove(at)).flatten();
            }
            let oldest = if kept.len() >= MAX_KEPT {
                kept.pop_front()
            } else {
                None
            };
            kept.push_back(Entry {
                at: Instant::now(),
                about,
                event,
                tries: 0,
                owed_by,
            });
            oldest
        });
        expired.extend(given_up.map(|entry| entry.about.event));
        expired
    }

    /// The plugin's oldest event without an outstanding answer, which stays until
    /// [`Backlog::answered`], and the expired events. `before`: only events of that event's object,
    /// except that event itself, which is about to be sent again.
    pub(crate) fn oldest(
        &self,
        session: &Arc<Session>,
        before: Option<&About>,
    ) -> (Option<Kept>, Vec<Event>) {
        self.with(&session.id, |kept| {
            let mut kept = kept.iter();
            let next = kept.find(|entry| {
                let is_before = |new: &About| entry.about.is_of(new) && entry.about != *new;
                !entry.is_owed_by(session) && before.is_none_or(is_before)
            });
            next.map(|entry| entry.event.clone())
        })
    }

    /// The plugin has answered the event. An object's Remove also ends all its other events.
    pub(crate) fn answered(&self, plugin: &PluginId, event: &About) {
        self.with(plugin, |kept| {
            kept.retain(|entry| {
                if event.ends_object() {
                    !entry.about.is_of(event)
                } else {
                    entry.about != *event
                }
            });
        });
    }

    /// The plugin will not answer the event any more: it can be sent again.
    pub(crate) fn unanswered(&self, plugin: &PluginId, event: &About) {
        self.with(plugin, |kept| {
            let entry = kept.iter_mut().find(|entry| entry.about == *event);
            if let Some(entry) = entry {
                entry.owed_by = Weak::new();
            }
        });
    }

    /// Number of events kept for a plugin.
    pub(crate) fn backlog(&self, plugin: &PluginId) -> usize {
        self.with(plugin, |kept| kept.len()).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(id: &str) -> Option<proto_nri::PodSandbox> {
        Some(proto_nri::PodSandbox {
            id: id.into(),
            ..Default::default()
        })
    }

    fn stop(id: &str) -> Kept {
        Kept::StopPod(StopPodSandboxRequest { pod: pod(id) })
    }

    fn keep(backlog: &Backlog, plugin: &PluginId, event: Kept) -> Vec<Event> {
        backlog.keep(plugin, event, true, None)
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_kept_in_order_for_ten_minutes() {
        let (backlog, session) = (Backlog::default(), Session::for_tests("10-a"));
        let plugin = &session.id;
        assert!(keep(&backlog, plugin, stop("p")).is_empty());
        tokio::time::advance(KEEP - Duration::from_secs(1)).await;
        keep(&backlog, plugin, stop("q"));
        assert_eq!(backlog.backlog(plugin), 2);
        tokio::time::advance(Duration::from_secs(2)).await;
        let (oldest, expired) = backlog.oldest(&session, None);
        assert_eq!(expired, [Event::StopPodSandbox]);
        let oldest = oldest.expect("the younger one is still kept").about();
        assert_eq!(oldest.pod, "q");
        backlog.answered(plugin, &oldest);
        assert_eq!(backlog.backlog(plugin), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_backlog_gives_up_the_oldest_and_says_so() {
        let (backlog, plugin) = (Backlog::default(), "10-a".parse().unwrap());
        for n in 0..MAX_KEPT {
            assert!(keep(&backlog, &plugin, stop(&n.to_string())).is_empty());
        }
        assert_eq!(
            keep(&backlog, &plugin, stop("new")),
            [Event::StopPodSandbox]
        );
        assert_eq!(backlog.backlog(&plugin), MAX_KEPT);
    }

    #[tokio::test]
    async fn an_event_that_fails_twice_more_is_given_up_and_one_that_was_not_tried_is_not() {
        let (backlog, plugin) = (Backlog::default(), "10-a".parse().unwrap());
        assert!(keep(&backlog, &plugin, stop("p")).is_empty());
        for _ in 0..3 {
            assert!(backlog.keep(&plugin, stop("p"), false, None).is_empty());
        }
        assert!(keep(&backlog, &plugin, stop("p")).is_empty());
        assert_eq!(keep(&backlog, &plugin, stop("p")), [Event::StopPodSandbox]);
        assert_eq!(backlog.backlog(&plugin), 0);
    }

    #[tokio::test]
    async fn an_event_is_not_sent_to_who_may_still_answer_it() {
        let (backlog, late) = (Backlog::default(), Session::for_tests("10-a"));
        let next = Session::for_tests("10-a");
        backlog.keep(&late.id, stop("p"), true, Some(&late));
        assert!(backlog.oldest(&late, None).0.is_none());
        assert!(backlog.oldest(&next, None).0.is_some());
        backlog.unanswered(&late.id, &stop("p").about());
        assert!(backlog.oldest(&late, None).0.is_some());
    }

    #[tokio::test]
    async fn nothing_of_an_object_is_left_after_its_remove() {
        let (backlog, session) = (Backlog::default(), Session::for_tests("10-a"));
        let plugin = &session.id;
        let container = Some(proto_nri::Container {
            id: "c".into(),
            ..Default::default()
        });
        let stop_container = Kept::StopContainer(StopContainerRequest {
            pod: pod("p"),
            container: container.clone(),
        });
        for event in [stop("p"), stop("q"), stop_container.clone()] {
            keep(&backlog, plugin, event);
        }
        let removed = About::of(&RemoveContainerRequest {
            pod: pod("p"),
            container,
        });
        let oldest = backlog.oldest(&session, Some(&removed)).0;
        assert_eq!(oldest.unwrap().about(), stop_container.about());
        backlog.answered(plugin, &removed);
        assert_eq!(backlog.backlog(plugin), 2, "both pods' events stay");
        let request = RemovePodSandboxRequest { pod: pod("p") };
        backlog.answered(plugin, &About::of(&request));
        let left = backlog.oldest(&session, None).0.unwrap().about();
        assert_eq!((left.pod.as_str(), backlog.backlog(plugin)), ("q", 1));
    }
}
