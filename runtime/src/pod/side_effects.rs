//! Updates and evictions of other containers that plugins request, in an answer or unsolicited.
//! Only this file applies them.

use std::{sync::Arc, time::Duration};

use nri::Requester;
use proto_nri::{ContainerEviction, ContainerUpdate, LinuxResources};

use super::{
    error::{Error, LONGEST_ID, Result},
    event_log,
    hooks::SideEffects,
    node::Node,
    op::Op,
    pods::Pods,
    registry::Registry,
    resources,
    state::{Container, Eviction, Pod},
};
use crate::one_line::cut;
use crate::trace::{Action, EventLog, Subject, Values, What};

/// Applies the changes that plugins requested in an answer to an event of this container; evictions
/// come first, since they are not awaited. A failure is recorded here and sent to its plugin.
pub async fn apply(cx: &Pods, pod: &Pod, container: &Container, wanted: &SideEffects) {
    let SideEffects {
        updates,
        evictions,
        by,
    } = wanted;
    let (log, hooks) = (&cx.notices.log, &cx.notices.hooks);
    let asking = event_log::subject(pod, Some(container));
    for ContainerEviction {
        container_id: target,
        reason,
    } in evictions
    {
        let plugins: Vec<String> = by
            .of_eviction(target)
            .iter()
            .map(ToString::to_string)
            .collect();
        let evicted = evict(&cx.registry, log, &plugins, target, reason);
        let Err(error) = evicted else { continue };
        let why = format!("eviction failed: {error}");
        for plugin in by.of_eviction(target) {
            let target = cut(target, LONGEST_ID);
            hooks.side_effect_failed(plugin, &format!("container {target}: {why}"));
            let (plugin, why) = (plugin.to_string(), why.clone());
            let failed = Action::RequestFailed {
                plugin: plugin.clone(),
                target,
                why,
            };
            log.record_of(&plugin, asking.clone(), failed);
        }
    }
    for (update, error) in update(&cx.node, &cx.registry, log, by, &asking, updates).await {
        let target = cut(&update.container_id, LONGEST_ID);
        for plugin in by.of_update(&update.container_id) {
            let why = format!("container {target}: update failed: {error}");
            hooks.side_effect_failed(plugin, &why);
        }
    }
}

/// Queues a stop without grace in the other pod; not awaited (NRI-570). The first plugin's share of
/// the event log pays for the event.
///
/// # Errors
/// The container does not exist.
pub fn evict(
    registry: &Registry,
    log: &EventLog,
    plugins: &[String],
    id: &str,
    reason: &str,
) -> Result<()> {
    let (pod, container) = registry.find_container(id)?;
    let plugin = plugins.join(", ");
    tracing::info!(plugin, container = %container.id, reason, "evicted by a plugin");
    let reason = reason.to_owned();
    let evicted = Action::Evicted {
        plugin: plugin.clone(),
        reason: reason.clone(),
    };
    let charged = plugins.first().map_or("", String::as_str);
    log.record_of(charged, event_log::subject(&pod, Some(&container)), evicted);
    // The first counts.
    let _ = container.evicted.set(Eviction { plugin, reason });
    let grace = Duration::ZERO;
    pod.post_container(&container.id, Op::Stop { grace });
    Ok(())
}

/// At once, waiting for no pod; after a failure the rest goes on.
/// Returns those that failed and were not to be ignored, for the caller to log with their plugin.
/// An update that changes nothing also fails if its container does not exist or takes no update.
/// Each is an event: of its container, or else of the subject `asking`.
pub async fn update(
    node: &Arc<Node>,
    registry: &Registry,
    log: &EventLog,
    by: &Arc<Requester>,
    asking: &Subject,
    updates: &[ContainerUpdate],
) -> Vec<(ContainerUpdate, Error)> {
    let mut failed = Vec::new();
    for update in updates {
        let linux = update.linux.as_ref();
        let resources = linux.and_then(|linux| linux.resources.as_ref());
        let found = registry.find_container(&update.container_id);
        let result = match (found, resources) {
            (Ok((pod, container)), Some(wanted)) => {
                let subject = event_log::subject(&pod, Some(&container));
                let (log, by) = (log.clone(), Arc::clone(by));
                let (id, wanted) = (update.container_id.clone(), wanted.clone());
                let ended = move |before: Option<&LinuxResources>, result: &Result<()>| {
                    let error = result.as_ref().err().map(|error| error.text.as_str());
                    updated(&log, &by, &subject, (&id, before, &wanted), error);
                };
                resources::write(node, &container, None, resources, ended).await
            }
            (Ok((pod, container)), None) => {
                let takes = resources::takes_update(container.cell.get().phase);
                if let Err(error) = &takes {
                    let subject = event_log::subject(&pod, Some(&container));
                    not_updated(log, by, &subject, update, &error.text);
                }
                takes.map(drop)
            }
            (Err(error), _) => {
                not_updated(log, by, asking, update, &error.text);
                Err(error)
            }
        };
        match result {
            Ok(()) => {}
            Err(error) if update.ignore_failure => {
                tracing::debug!(container = %update.container_id, %error, "update by a plugin that ignores its failure");
            }
            Err(error) => failed.push((update.clone(), error)),
        }
    }
    failed
}

/// Records the update of a container for each requesting plugin: the id in its request, values
/// before, and the values of all plugins. If the id is not that of the subject, there is no such
/// container.
pub fn updated(
    log: &EventLog,
    by: &Requester,
    subject: &Subject,
    (id, before, wanted): (&str, Option<&LinuxResources>, &LinuxResources),
    error: Option<&str>,
) {
    let is_found = !id.is_empty() && subject.container.starts_with(id);
    for plugin in by.of_update(id) {
        let is_theirs = |field, key: Option<&str>| by.has_set(plugin, id, field, key);
        let values = Values::of_update(before, wanted, is_theirs);
        if values.values.is_empty() && error.is_none() {
            continue;
        }
        let plugin = plugin.to_string();
        let update = What::Update {
            plugin: plugin.clone(),
            hook: by.call.to_owned(),
            target: if is_found {
                String::new()
            } else if id.is_empty() {
                // An event without a target is one of its subject.
                "(no id)".to_owned()
            } else {
                cut(id, LONGEST_ID)
            },
            values,
            error: error.map(str::to_owned),
        };
        log.record_of(&plugin, subject.clone(), update);
    }
}

/// Records an update that reached no container.
pub fn not_updated(
    log: &EventLog,
    by: &Requester,
    asking: &Subject,
    update: &ContainerUpdate,
    error: &str,
) {
    let linux = update.linux.as_ref();
    let wanted = linux.and_then(|linux| linux.resources.clone());
    let change = (
        update.container_id.as_str(),
        None,
        &wanted.unwrap_or_default(),
    );
    updated(log, by, asking, change, Some(error));
}
