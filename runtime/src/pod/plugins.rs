//! The pods as plugins reach them ([`nri::Source`]), and plugins as the event log sees them ([`nri::Observer`], the
//! one way on which what a plugin did gets there).

use std::sync::Arc;

use nri::{BoxFuture, Delivery, FailedUpdate, PluginEvent, PluginId, PluginName, Snapshot};
use proto_nri::ContainerUpdate;

use super::{
    event_log, message,
    node::Node,
    record::{ContainerPhase, Mark, PodPhase},
    registry::Registry,
    side_effects,
};
use crate::{
    clock::nanoseconds,
    spans,
    trace::{self, EventLog, Life, Subject, What},
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

    fn update(&self, updates: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<FailedUpdate>> {
        Box::pin(async move {
            let failed = side_effects::update(&self.node, &self.registry, &updates)
                .await
                .into_iter();
            let failed = failed.map(|(update, error)| FailedUpdate::new(update, error.to_string()));
            failed.collect()
        })
    }

    fn evict(
        &self,
        plugin: &PluginId,
        container: String,
        reason: String,
    ) -> BoxFuture<'_, Result<(), String>> {
        let plugin = plugin.to_string();
        let (registry, log) = (&self.registry, &self.log);
        let evicted = side_effects::evict(registry, log, &plugin, &container, &reason);
        let evicted = evicted.map_err(|error| error.to_string());
        Box::pin(std::future::ready(evicted))
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
        // The library has logged it.
        if let Some(life) = life(event) {
            let plugin = plugin.to_string();
            let what = What::PluginLife { plugin, life };
            self.log.record(Subject::daemon(), what);
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
    What::Plugin {
        hook: nri::mask::event_name(delivery.event).to_owned(),
        plugin: delivery.plugin.to_string(),
        outcome: outcome(&delivery.outcome),
        took_ns: nanoseconds(delivery.took),
        adjusted: delivery.adjusted,
        changed: delivery.changed.clone(),
        updates: small(delivery.updates),
        evictions: small(delivery.evictions),
        left_out: delivery.left_out.iter().map(ToString::to_string).collect(),
    }
}

fn outcome(outcome: &nri::Outcome) -> trace::Outcome {
    use nri::Outcome as From;
    use trace::Outcome as To;
    match outcome {
        From::Answered => To::Answered,
        From::Refused(status) => To::Refused(status.message.clone()),
        From::Unsent(why) => To::Unsent(why.clone()),
        From::TimedOut => To::TimedOut,
        From::Lost(reason) => To::Lost(reason.clone()),
        From::Garbled(reason) => To::Garbled(reason.clone()),
        From::Conflict(reason) | From::Invalid(reason) => To::Conflict(reason.clone()),
        From::Denied(reason) => To::Denied(reason.clone()),
        From::Skipped => To::Skipped,
        From::NotSubscribed => To::NotSubscribed,
        From::Joining => To::Joining,
        From::Absent => To::Absent,
        From::Cancelled => To::Cancelled,
    }
}

/// `None` for what the log alone tells.
fn life(event: &PluginEvent) -> Option<Life> {
    Some(match event {
        PluginEvent::Launched => Life::Launched,
        PluginEvent::Registered { version, .. } => Life::Registered {
            version: version.as_str().to_owned(),
        },
        PluginEvent::Configured { events } => Life::Configured {
            events: events
                .iter()
                .map(|e| nri::mask::event_name(e).to_owned())
                .collect(),
        },
        PluginEvent::Synchronized {
            pods,
            containers,
            took,
        } => Life::Synchronized {
            pods: small(*pods),
            containers: small(*containers),
            took_ns: nanoseconds(*took),
        },
        PluginEvent::Shortened { left_out } => Life::Shortened {
            left_out: left_out.to_string(),
        },
        PluginEvent::Deprecated { .. } => return None,
        PluginEvent::Unsolicited {
            updates,
            failed,
            evictions,
        } => Life::Unsolicited {
            updates: small(*updates),
            failed: small(*failed),
            evictions: small(*evictions),
        },
        PluginEvent::WishFailed { container, why } => Life::WishFailed {
            target: container.clone(),
            why: why.clone(),
        },
        PluginEvent::Rejected { reason } => Life::Rejected {
            reason: reason.clone(),
        },
        PluginEvent::Shadowed => Life::Shadowed,
        PluginEvent::Closed { reason } => Life::Closed {
            reason: reason.clone(),
        },
        PluginEvent::Restarting { after } => Life::Restarting {
            after_ns: nanoseconds(*after),
        },
        PluginEvent::Dropped { event } => Life::Dropped {
            hook: nri::mask::event_name(*event).to_owned(),
        },
    })
}
