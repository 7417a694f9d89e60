//! Memory of a [`FakeRuntime`](super::FakeRuntime): its pods and containers, and the effects of
//! plugins.

use std::collections::{BTreeMap, BTreeSet};

use nri::{
    BoxFuture, Delivery, FailedUpdate, Observer, PluginEvent, PluginId, PluginName, Requester,
    Snapshot, Source,
    merge::overlay,
    proto::{Container, ContainerState, ContainerUpdate, LinuxResources, PodSandbox},
};
use parking_lot::Mutex;

/// Whether the runtime has a container named by a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    There,
    /// Plugins were notified of its stop.
    Stopped,
    /// It existed, and plugins were notified of its removal.
    Removed,
    /// No container ever had this id.
    Never,
}

/// A plugin's request for a container other than that of its event.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginRequest {
    /// The plugin; `None` for updates outside of an answer, which do not name it.
    pub by: Option<PluginId>,
    /// Id of the container.
    pub container: String,
    pub place: Place,
    /// It came in an answer; otherwise it was unsolicited.
    pub answer: bool,
    pub kind: PluginRequestKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum PluginRequestKind {
    Update(Box<LinuxResources>),
    Evict(String),
}

/// A step in the life of a plugin, as reported to the observer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening {
    /// `None` until it is known.
    pub plugin: Option<PluginId>,
    pub event: PluginEvent,
}

#[derive(Debug, Default)]
struct Inner {
    pods: BTreeMap<String, PodSandbox>,
    containers: BTreeMap<String, Container>,
    /// Names of removed containers, by id.
    removed: BTreeMap<String, String>,
    /// Ids of containers whose StopContainer plugins have got.
    stops_sent: BTreeSet<String>,
    requests: Vec<PluginRequest>,
    deliveries: Vec<Delivery>,
    happenings: Vec<Happening>,
    ids: u64,
}

/// Pods and containers by name, and the record of all effects.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<Inner>);

impl Memory {
    /// An id in the form of runtimes, the same in every run.
    pub(super) fn next_id(&self) -> String {
        let mut inner = self.0.lock();
        inner.ids += 1;
        let mut id = String::new();
        let mut word = inner.ids;
        for _ in 0..4 {
            // splitmix64
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = word;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            id.push_str(&format!("{:016x}", mixed ^ (mixed >> 31)));
        }
        id
    }

    pub(super) fn put_pod(&self, pod: PodSandbox) {
        self.0.lock().pods.insert(pod.name.clone(), pod);
    }

    pub(super) fn pod(&self, name: &str) -> Option<PodSandbox> {
        self.0.lock().pods.get(name).cloned()
    }

    pub(super) fn drop_pod(&self, name: &str) {
        self.0.lock().pods.remove(name);
    }

    pub(super) fn put_container(&self, container: Container) {
        let mut inner = self.0.lock();
        inner.containers.insert(container.name.clone(), container);
    }

    pub(super) fn container(&self, name: &str) -> Option<Container> {
        self.0.lock().containers.get(name).cloned()
    }

    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut Container)) {
        if let Some(container) = self.0.lock().containers.get_mut(name) {
            change(container);
        }
    }

    pub(super) fn drop_container(&self, name: &str) {
        let mut inner = self.0.lock();
        if let Some(gone) = inner.containers.remove(name) {
            inner.removed.insert(gone.id, gone.name);
        }
    }

    /// Plugins have got StopContainer.
    pub(super) fn stop_was_sent(&self, id: String) {
        self.0.lock().stops_sent.insert(id);
    }

    pub(super) fn name_of(&self, id: &str) -> Option<String> {
        let inner = self.0.lock();
        let there = inner.containers.values().find(|c| c.id == id);
        let there = there.map(|container| &container.name);
        there.or_else(|| inner.removed.get(id)).cloned()
    }

    pub(super) fn containers_of(&self, pod: &PodSandbox) -> Vec<Container> {
        let inner = self.0.lock();
        let all = inner.containers.values();
        all.filter(|c| c.pod_sandbox_id == pod.id)
            .cloned()
            .collect()
    }

    /// Records a request; false if it cannot be carried out.
    pub(super) fn request(
        &self,
        by: Option<PluginId>,
        container: &str,
        answer: bool,
        kind: PluginRequestKind,
    ) -> bool {
        let mut inner = self.0.lock();
        let removed = inner.removed.contains_key(container);
        let stop_was_sent = inner.stops_sent.contains(container);
        let named = inner.containers.values_mut().find(|c| c.id == container);
        let place = match named {
            Some(_) if stop_was_sent => Place::Stopped,
            Some(there) => {
                if let PluginRequestKind::Update(resources) = &kind {
                    overlay(resources_of(there), (**resources).clone());
                }
                Place::There
            }
            None if removed => Place::Removed,
            None => Place::Never,
        };
        inner.requests.push(PluginRequest {
            by,
            container: container.to_owned(),
            place,
            answer,
            kind,
        });
        place == Place::There
    }

    pub(super) fn take_requests(&self) -> Vec<PluginRequest> {
        std::mem::take(&mut self.0.lock().requests)
    }

    pub(super) fn take_deliveries(&self) -> Vec<Delivery> {
        std::mem::take(&mut self.0.lock().deliveries)
    }

    pub(super) fn take_happenings(&self) -> Vec<Happening> {
        std::mem::take(&mut self.0.lock().happenings)
    }
}

/// The resources of a container, filled in if it has none.
pub(super) fn resources_of(container: &mut Container) -> &mut LinuxResources {
    let linux = container.linux.get_or_insert_default();
    linux.resources.get_or_insert_default()
}

impl Source for Memory {
    fn snapshot(&self) -> Snapshot {
        let inner = self.0.lock();
        let live = |c: &&Container| c.state != ContainerState::ContainerStopped as i32;
        Snapshot {
            pods: inner.pods.values().cloned().collect(),
            containers: inner.containers.values().filter(live).cloned().collect(),
        }
    }

    fn update(
        &self,
        by: &Requester,
        updates: Vec<ContainerUpdate>,
    ) -> BoxFuture<'_, Vec<FailedUpdate>> {
        let failed = updates.into_iter().filter(|update| {
            let resources = update.linux.clone().and_then(|linux| linux.resources);
            let kind = PluginRequestKind::Update(Box::new(resources.unwrap_or_default()));
            let by = by.of_update(&update.container_id).first().cloned();
            !self.request(by, &update.container_id, false, kind)
        });
        let failed = failed.map(|update| FailedUpdate::new(update, "no such container"));
        let failed: Vec<_> = failed.collect();
        Box::pin(async move { failed })
    }

    fn evict(
        &self,
        plugin: &PluginId,
        container: String,
        reason: String,
    ) -> BoxFuture<'_, Result<(), String>> {
        let kind = PluginRequestKind::Evict(reason);
        let there = self.request(Some(plugin.clone()), &container, false, kind);
        Box::pin(async move {
            if there {
                Ok(())
            } else {
                Err(format!("there is no container {container}"))
            }
        })
    }
}

impl Observer for Memory {
    fn delivered(&self, delivery: &Delivery) {
        self.0.lock().deliveries.push(delivery.clone());
    }

    fn plugin(&self, plugin: &PluginName<'_>, event: &PluginEvent) {
        self.0.lock().happenings.push(Happening {
            plugin: plugin.id.cloned(),
            event: event.clone(),
        });
    }
}
