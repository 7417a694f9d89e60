//! Updates and evictions of other containers that plugins request, in an answer or unsolicited.
//! Only this file applies them.

use std::{sync::Arc, time::Duration};

use proto_nri::{ContainerEviction, ContainerUpdate};

use super::{
    error::{Error, Result},
    event_log,
    hooks::SideEffects,
    node::Node,
    op::Op,
    pods::Pods,
    registry::Registry,
    resources,
    state::{Container, Eviction, Pod},
};
use crate::trace::{Action, EventLog};

/// Applies the changes that plugins requested in an answer to an event of this container; evictions
/// come first, since they are not awaited. A failure is recorded here and sent to its plugin.
pub async fn apply(cx: &Pods, pod: &Pod, container: &Container, wanted: &SideEffects) {
    let mut all_failed = Vec::new();
    for ContainerEviction {
        container_id: target,
        reason,
    } in &wanted.evictions
    {
        let plugins = wanted.askers.of_eviction(target);
        let names: Vec<String> = plugins.iter().map(ToString::to_string).collect();
        let evicted = evict(
            &cx.registry,
            &cx.notices.log,
            &names.join(", "),
            target,
            reason,
        );
        if let Err(error) = evicted {
            all_failed.push((plugins, target.clone(), format!("eviction failed: {error}")));
        }
    }
    for (update, error) in update(&cx.node, &cx.registry, &wanted.updates).await {
        let target = update.container_id;
        let plugins = wanted.askers.of_update(&target);
        all_failed.push((plugins, target, format!("update failed: {error}")));
    }
    for (plugins, target, why) in all_failed {
        for plugin in plugins {
            let hooks = &cx.notices.hooks;
            hooks.side_effect_failed(plugin, &format!("container {target}: {why}"));
            let failed = Action::WishFailed {
                plugin: plugin.to_string(),
                target: target.clone(),
                why: why.clone(),
            };
            cx.notices.became(pod, Some(container), failed);
        }
    }
}

/// Queues a stop without grace in the other pod; not awaited (NRI-570).
///
/// # Errors
/// The container does not exist.
pub fn evict(
    registry: &Registry,
    log: &EventLog,
    plugin: &str,
    id: &str,
    reason: &str,
) -> Result<()> {
    let (pod, container) = registry.find_container(id)?;
    tracing::info!(plugin, container = %container.id, reason, "evicted by a plugin");
    let (plugin, reason) = (plugin.to_owned(), reason.to_owned());
    let evicted = Action::Evicted {
        plugin: plugin.clone(),
        reason: reason.clone(),
    };
    event_log::record(log, &pod, Some(&container), evicted);
    // The first eviction wins.
    let _ = container.evicted.set(Eviction { plugin, reason });
    let grace = Duration::ZERO;
    pod.post_container(&container.id, Op::Stop { grace });
    Ok(())
}

/// Applies updates at once, without waiting for pods; continues after a failure. Returns the
/// failures that must not be ignored, for the caller to log with their plugin. An empty update also
/// fails if its container does not exist.
pub async fn update(
    node: &Arc<Node>,
    registry: &Registry,
    updates: &[ContainerUpdate],
) -> Vec<(ContainerUpdate, Error)> {
    let mut failed = Vec::new();
    for update in updates {
        let linux = update.linux.as_ref();
        let resources = linux.and_then(|linux| linux.resources.as_ref());
        let found = registry.find_container(&update.container_id);
        let result = match (found, resources) {
            (Ok((_, container)), Some(_)) => {
                resources::write(node, &container, None, resources).await
            }
            (Ok(_), None) => Ok(()),
            (Err(error), _) => Err(error),
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
