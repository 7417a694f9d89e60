//! Updates and evictions of other containers that plugins request, in an answer or unsolicited.
//! Only this file applies them.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use nri::{PluginId, Requester, merge::Share};
use proto_nri::{ContainerEviction, ContainerUpdate, LinuxResources};
use tokio::time::Instant;

use super::{
    error::{Error, LONGEST_ID, Result},
    event_log,
    node::Node,
    plugin_answer::SideEffects,
    pods::Pods,
    record::{ContainerRecord, Eviction},
    registry::Registry,
    resources,
    state::{Container, Pod},
};
use crate::one_line::cut;
use crate::trace::{Action, EventLog, Subject, Values, What};

/// Applies the changes that plugins requested in an answer to an event of this container; evictions
/// come first, since their stops are not awaited. A failure is recorded here and sent to its plugin, and
/// to no other.
pub async fn apply(
    cx: &Pods,
    pod: &Pod,
    container: &Container,
    wanted: &SideEffects,
    until: Instant,
) {
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
        let evicted = evict(&cx.registry, log, &plugins, target, reason).await;
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
    let failed = update(&cx.node, &cx.registry, log, by, &asking, updates, until).await;
    for (Share { plugin, update }, error) in failed {
        let target = cut(&update.container_id, LONGEST_ID);
        let why = format!("container {target}: update failed: {error}");
        hooks.side_effect_failed(&plugin, &why);
    }
}

/// Records the eviction, and queues a stop without grace in the other pod, which is not awaited
/// (NRI-570). A container that does not run yet is never started. The first plugin's share of the
/// event log pays for the event.
///
/// # Errors
/// The container does not exist.
pub async fn evict(
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
    if container.cell.get().evicted.is_none() {
        let eviction = Eviction { plugin, reason };
        let evict = |record: &mut ContainerRecord| {
            record.evicted.get_or_insert(eviction);
        };
        container.cell.note(evict).await;
    }
    pod.stop_evicted(&container);
    Ok(())
}

/// Applies updates by plugin, so that a bad value costs only its plugin the update. Waits for no
/// pod, and no longer than until the deadline: different containers are changed at once, each in
/// the order of its updates. Returns those that failed and were not to be ignored.
///
/// An update that changes nothing also fails if its container does not exist or takes no update.
/// Each is an event: of its container, or else of the subject `asking`.
pub async fn update(
    node: &Arc<Node>,
    registry: &Registry,
    log: &EventLog,
    by: &Arc<Requester>,
    asking: &Subject,
    updates: &[ContainerUpdate],
    until: Instant,
) -> Vec<(Share, Error)> {
    let mut of_containers: BTreeMap<&str, Vec<Share>> = BTreeMap::new();
    for update in updates {
        let of = of_containers.entry(&update.container_id).or_default();
        of.extend(by.shares(update));
    }
    let all = of_containers.into_values().map(|shares| async {
        let mut failed = Vec::new();
        for share in shares {
            let applied = update_one(node, registry, log, by.call, asking, &share, until);
            match applied.await {
                Ok(()) => {}
                Err(error) if share.update.ignore_failure => {
                    let container = &share.update.container_id;
                    tracing::debug!(container, %error, "update by a plugin that ignores its failure");
                }
                Err(error) => failed.push((share, error)),
            }
        }
        failed
    });
    join_all(all).await.concat()
}

async fn update_one(
    node: &Arc<Node>,
    registry: &Registry,
    log: &EventLog,
    call: &'static str,
    asking: &Subject,
    share: &Share,
    until: Instant,
) -> Result<()> {
    let Share { plugin, update } = share;
    let (pod, container) = match registry.find_container(&update.container_id) {
        Ok(found) => found,
        Err(error) => {
            not_updated(log, call, asking, share, &error.text);
            return Err(error);
        }
    };
    let subject = event_log::subject(&pod, Some(&container));
    let linux = update.linux.as_ref();
    let Some(wanted) = linux.and_then(|linux| linux.resources.as_ref()) else {
        let takes = resources::takes_update(container.cell.get().phase);
        return takes.inspect_err(|error| {
            not_updated(log, call, &subject, share, &error.text);
        });
    };
    let (log, plugin) = (log.clone(), plugin.clone());
    let (id, values) = (update.container_id.clone(), wanted.clone());
    let ended = move |before: Option<&LinuxResources>, result: &Result<()>| {
        let error = result.as_ref().err().map(|error| error.text.as_str());
        let values = Values::of_update(before, &values, |_, _| true);
        updated(&log, call, &plugin, &subject, (&id, values), error);
    };
    resources::write(node, &container, None, Some(wanted), until, ended).await
}

/// Records the update of a container by a plugin: the id in its request, and its values. An id that
/// no container has is recorded at the subject that asks.
pub fn updated(
    log: &EventLog,
    call: &str,
    plugin: &PluginId,
    subject: &Subject,
    (id, values): (&str, Values),
    error: Option<&str>,
) {
    if values.values.is_empty() && error.is_none() {
        return;
    }
    let is_found = !id.is_empty() && subject.container.starts_with(id);
    let plugin = plugin.to_string();
    let update = What::Update {
        plugin: plugin.clone(),
        hook: call.to_owned(),
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

/// Records an update that reached no container.
pub fn not_updated(log: &EventLog, call: &str, asking: &Subject, share: &Share, error: &str) {
    let Share { plugin, update } = share;
    let linux = update.linux.as_ref();
    let wanted = linux.and_then(|linux| linux.resources.clone());
    let values = Values::of_update(None, &wanted.unwrap_or_default(), |_, _| true);
    let change = (update.container_id.as_str(), values);
    updated(log, call, plugin, asking, change, Some(error));
}
