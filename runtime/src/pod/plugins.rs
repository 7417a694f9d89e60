//! The pods as plugins see them ([`nri::Source`]), and plugins as the event log sees them
//! ([`nri::Observer`], the only way in which a plugin's actions reach the log).

use std::sync::Arc;

use nri::{
    BoxFuture, Delivery, FailedUpdate, Kind, PluginEvent, PluginId, PluginName, Requester, Snapshot,
};
use proto_nri::ContainerUpdate;

use super::{
    event_log, message,
    node::Node,
    record::{ContainerPhase, Mark, PodPhase},
    registry::Registry,
    resources, side_effects,
};
use crate::{
    clock::nanoseconds,
    spans,
    trace::{EventLog, Subject, Values, What},
};

/// Has no hooks: they own it, and would own themselves.
pub struct Plugins {
    pub node: Arc<Node>,
    pub registry: Arc<Registry>,
    pub log: EventLog,
}

impl nri::Source for Plugins {
    /// The library leaves out what a plugin gets, or got, events for.
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for pod in self.registry.all() {
            let record = pod.cell.get();
            let kept = record.phase != PodPhase::NotReady || record.failed_step.is_none();
            if kept && record.hooks.remove == Mark::None {
                snapshot.pods.push(message::pod(&self.node, &pod));
            }
            for container in pod.containers() {
                let record = container.cell.get();
                let lives = record.phase != ContainerPhase::Exited;
                if lives && container.has_message() && record.hooks.remove == Mark::None {
                    snapshot.containers.push(message::container(&container));
                }
            }
        }
        snapshot
    }

    fn update(
        &self,
        by: &Requester,
        updates: Vec<ContainerUpdate>,
    ) -> BoxFuture<'_, Vec<FailedUpdate>> {
        let by = Arc::new(by.clone());
        Box::pin(async move {
            let (node, registry, log) = (&self.node, &self.registry, &self.log);
            let nobody = Subject::daemon();
            let until = resources::deadline();
            let failed =
                side_effects::update(node, registry, log, &by, &nobody, &updates, until).await;
            let failed = failed.into_iter();
            let failed =
                failed.map(|(share, error)| FailedUpdate::new(share.update, error.to_string()));
            failed.collect()
        })
    }

    fn evict(
        &self,
        plugin: &PluginId,
        container: String,
        reason: String,
    ) -> BoxFuture<'_, Result<(), String>> {
        let plugins = [plugin.to_string()];
        let (registry, log) = (&self.registry, &self.log);
        Box::pin(async move {
            let evicted = side_effects::evict(registry, log, &plugins, &container, &reason);
            evicted.await.map_err(|error| error.to_string())
        })
    }
}

impl nri::Observer for Plugins {
    fn delivered(&self, delivery: &Delivery) {
        traced(delivery);
        let Some(pod) = self.registry.any(&delivery.pod) else {
            return;
        };
        let container = pod.container(&delivery.container);
        let subject = event_log::subject(&pod, container.as_deref());
        self.log.record(subject, answer(delivery));
    }

    fn plugin(&self, plugin: &PluginName<'_>, event: &PluginEvent) {
        // The library has logged it. Its updates and evictions have events of their own.
        if matches!(event, PluginEvent::Unsolicited { .. }) {
            return;
        }
        let (name, life) = (plugin.to_string(), event.clone());
        let what = What::PluginLife { plugin: name, life };
        // A client may connect at any rate.
        let has_share =
            plugin.kind == Kind::External || matches!(event, PluginEvent::RequestFailed { .. });
        if has_share {
            let id = plugin.id.map(ToString::to_string);
            let id = id.unwrap_or_else(|| "plugins without a name".to_owned());
            self.log.record_of(&id, Subject::daemon(), what);
        } else {
            self.log.record(Subject::daemon(), what);
        }
    }

    fn update_rejected(&self, by: &Requester, FailedUpdate { update, why }: &FailedUpdate) {
        let found = self.registry.find_container(&update.container_id);
        let subject = found.map(|(pod, container)| event_log::subject(&pod, Some(&container)));
        let subject = subject.unwrap_or_else(|_| Subject::daemon());
        for share in by.shares(update) {
            side_effects::not_updated(&self.log, by.call, &subject, &share, why);
        }
    }
}

/// The call of a plugin, as a span of what it is part of.
fn traced(delivery: &Delivery) {
    use nri::Outcome;
    let error = match &delivery.outcome {
        Outcome::NotSubscribed | Outcome::Joining | Outcome::Absent | Outcome::Skipped => return,
        Outcome::Answered => None,
        outcome => Some(outcome),
    };
    spans::ended(delivery.took, || {
        let (plugin, event) = (
            delivery.plugin.to_string(),
            nri::mask::event_name(delivery.event),
        );
        let name = format!("NRI {event} {plugin}");
        let attributes = vec![("nri.plugin", plugin), ("nri.event", event.to_owned())];
        (
            name,
            attributes,
            error.map(|outcome| format!("{outcome:?}")),
        )
    });
}

fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn answer(delivery: &Delivery) -> What {
    let adjustment = delivery.adjustment.as_deref();
    What::Plugin {
        hook: nri::mask::event_name(delivery.event).to_owned(),
        plugin: delivery.plugin.to_string(),
        outcome: delivery.outcome.clone(),
        took_ns: nanoseconds(delivery.took),
        adjusted: delivery.adjusted,
        changed: delivery.changed.clone(),
        values: adjustment.map_or_else(Values::default, |adjustment| {
            Values::of_adjustment(&delivery.changed, adjustment)
        }),
        updates: small(delivery.updates),
        evictions: small(delivery.evictions),
        left_out: delivery.left_out.iter().map(ToString::to_string).collect(),
    }
}
