//! An in-memory runtime that records the outcome for the plugin under test.

use nri::{
    BoxFuture, FailedUpdate, Kind, Observer, PluginEvent, PluginId, PluginName, Requester,
    Snapshot, Source, proto::ContainerUpdate,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::samples;

/// Updates of this container fail.
pub(super) const FAILS: &str = "fails";

#[derive(Default)]
pub(super) struct Watcher {
    updates: Mutex<Vec<ContainerUpdate>>,
    evictions: Mutex<Vec<(String, String)>>,
    settled: Notify,
}

fn take<T: Default>(from: &Mutex<T>) -> T {
    std::mem::take(&mut *from.lock())
}

impl Watcher {
    /// Takes the updates applied since the last call.
    pub(super) fn take_updates(&self) -> Vec<ContainerUpdate> {
        take(&self.updates)
    }

    /// Takes the evictions since the last call: container and reason.
    pub(super) fn take_evictions(&self) -> Vec<(String, String)> {
        take(&self.evictions)
    }

    /// Resolves when the connected plugin is synchronised or has ended.
    pub(super) async fn settled(&self) {
        self.settled.notified().await;
    }
}

impl Source for Watcher {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            pods: vec![samples::pod("earlier")],
            containers: vec![samples::small_container(samples::OTHER)],
        }
    }

    fn update(
        &self,
        _: &Requester,
        updates: Vec<ContainerUpdate>,
    ) -> BoxFuture<'_, Vec<FailedUpdate>> {
        let fails = |update: &ContainerUpdate| update.container_id == FAILS;
        let (failed, done): (Vec<_>, Vec<_>) = updates.into_iter().partition(fails);
        let failed = failed
            .into_iter()
            .map(|update| FailedUpdate::new(update, "it fails"));
        let failed = failed.collect();
        let mut all = self.updates.lock();
        all.extend(done);
        Box::pin(std::future::ready(failed))
    }

    fn evict(
        &self,
        _: &PluginId,
        container: String,
        reason: String,
    ) -> BoxFuture<'_, Result<(), String>> {
        let mut all = self.evictions.lock();
        all.push((container, reason));
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Observer for Watcher {
    fn plugin(&self, name: &PluginName<'_>, event: &PluginEvent) {
        let over = matches!(
            event,
            PluginEvent::Synchronized { .. } | PluginEvent::Rejected { .. }
        );
        if over && name.kind == Kind::External {
            self.settled.notify_one();
        }
    }
}
