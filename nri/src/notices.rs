//! Reports about plugins, to the log, the observer and the counts.

use std::sync::Arc;

use proto_nri::Event;

use crate::{
    mask,
    metrics::Metrics,
    observe::{Delivery, Kind, Observer, PluginEvent, PluginName},
    plugin::Session,
    plugin_id::PluginId,
    rejections::Rejections,
    roster::Roster,
    source::{FailedUpdate, Requester},
    wire::rpc::one_line,
};

struct Unobserved;

impl Observer for Unobserved {}

pub(crate) struct Notices {
    roster: Arc<Roster>,
    pub(crate) is_observed: bool,
    observer: Arc<dyn Observer>,
    pub(crate) metrics: Metrics,
    pub(crate) rejections: Rejections,
}

impl Notices {
    pub(crate) fn new(roster: Arc<Roster>, observer: Option<Arc<dyn Observer>>) -> Self {
        Self {
            roster,
            is_observed: observer.is_some(),
            observer: observer.unwrap_or_else(|| Arc::new(Unobserved)),
            metrics: Metrics::default(),
            rejections: Rejections::default(),
        }
    }

    pub(crate) fn called(&self, operation: &'static str, call: &Delivery) {
        if self.metrics.record(operation, call) {
            self.observer.called(operation, call);
        }
    }

    pub(crate) fn delivered(&self, delivery: &Delivery) {
        self.observer.delivered(delivery);
    }

    /// Reports a step in a plugin's life.
    pub(crate) fn report(&self, name: &PluginName<'_>, event: &PluginEvent) {
        match event {
            PluginEvent::Rejected { .. }
            | PluginEvent::Dropped { .. }
            | PluginEvent::Shortened { .. } => {
                tracing::warn!(plugin = %name, ?event);
            }
            PluginEvent::Deprecated { event } => tracing::warn!(
                plugin = %name,
                "takes {} as StateChange only, which is deprecated",
                mask::event_name(*event)
            ),
            _ => tracing::info!(plugin = %name, ?event),
        }
        if let (None, PluginEvent::Rejected { reason }) = (name.id, event) {
            self.rejections.remember(name, reason);
        }
        self.observer.plugin(name, event);
    }

    /// As [`Notices::report`], of a plugin that is on the list or not.
    pub(crate) fn report_of(&self, plugin: &PluginId, event: &PluginEvent) {
        match self.sessions_of(plugin).next() {
            Some(session) => self.report(&session.name(), event),
            None => {
                let mut name = PluginName::unknown(Kind::External);
                name.id = Some(plugin);
                self.report(&name, event);
            }
        }
    }

    /// Reports that events which were kept for a plugin will not be sent.
    pub(crate) fn dropped(&self, plugin: &PluginId, events: Vec<Event>) {
        for event in events {
            self.report_of(plugin, &PluginEvent::Dropped { event });
        }
    }

    /// A request of a plugin failed: an error of that plugin, though it answered.
    pub(crate) fn request_failed(&self, plugin: &PluginId, what: &str) {
        tracing::warn!(%plugin, "{what}");
        for session in self.sessions_of(plugin) {
            session.stats.blame(what);
        }
    }

    /// Reports updates that the library rejected: the runtime never saw them.
    pub(crate) fn rejected(&self, by: &Requester, updates: &[FailedUpdate]) {
        for failed in updates {
            self.update_failed(by, failed);
            self.observer.update_rejected(by, failed);
        }
    }

    pub(crate) fn update_failed(&self, by: &Requester, failed: &FailedUpdate) {
        let FailedUpdate { update, why } = failed;
        let id = one_line(&update.container_id);
        let what = format!("update of container {id} by {} failed: {why}", by.call);
        for plugin in by.of_update(&update.container_id) {
            self.request_failed(&plugin, &what);
        }
    }

    /// Reports how many plugins are active.
    pub(crate) fn count_changed(&self) {
        let slots = self.roster.slots();
        let active = slots.iter().filter(|slot| slot.active().is_some());
        self.observer.active(active.count());
    }

    fn sessions_of(&self, plugin: &PluginId) -> impl Iterator<Item = Arc<Session>> {
        let slots = self.roster.slots().into_iter();
        let named = slots.filter(move |slot| slot.id == *plugin);
        named.filter_map(|slot| slot.session())
    }
}
