//! Removes objects without a record at the end of a recovery. Held objects have records.

use std::{collections::HashSet, fs, path::Path};

use super::{dirs::remove_large_dir, node::Node, pods::Pods, registry::Registry};

/// Only at the end of a recovery: a pod that is being made is not among the owners.
pub(super) async fn sweep(cx: &Pods) {
    let (node, (pods, containers)) = (&cx.node, owners(&cx.registry));
    if let Err(error) = node.machine.gc(&pods).await {
        tracing::error!(%error, "give back the networks of sandboxes that are gone");
    }
    sweep_pods(node, &pods).await;
    sweep_containers(node, &containers).await;
    sweep_units(node, &pods, &containers).await;
    for id in node.images.in_use().pods {
        if !pods.contains(&id) {
            let result = node.images.release_image_volumes(&id).await;
            log("image volumes", &id, result);
        }
    }
    for id in node.specs.ids().unwrap_or_default() {
        if !containers.contains(&id) {
            log("spec", &id, node.specs.remove(&id).await);
        }
    }
}

/// Ids of pods and of containers that have a record, readable or not.
fn owners(registry: &Registry) -> (HashSet<String>, HashSet<String>) {
    let held = registry.held();
    let mut containers: HashSet<_> = held.containers.keys().cloned().collect();
    let mut pods: HashSet<_> = held.pods.keys().cloned().collect();
    pods.extend(held.containers.values().filter_map(|c| c.pod.clone()));
    for pod in registry.pods() {
        containers.extend(pod.containers().iter().map(|one| one.id.clone()));
        pods.insert(pod.id.clone());
    }
    (pods, containers)
}

async fn sweep_pods(node: &Node, pods: &HashSet<String>) {
    let dirs = &node.dirs;
    for id in others(&dirs.all_namespaces(), pods) {
        log("namespaces", &id, node.unpin(&id).await);
    }
    for id in others(&dirs.all_files(), pods) {
        log("files", &id, node.remove_files(&id).await);
    }
    for id in others(&dirs.pauses(), pods) {
        let ended = node.end(&dirs.pause(&id)).await;
        log("pause process", &id, ended);
    }
}

async fn sweep_containers(node: &Node, containers: &HashSet<String>) {
    let dirs = &node.dirs;
    for id in others(&dirs.containers(), containers) {
        let ended = node.end(&dirs.container(&id)).await;
        log("processes", &id, ended);
    }
    for id in others(&dirs.roots(), containers) {
        let released = node.images.release_rootfs(&id).await;
        log("root file system", &id, released);
    }
    for id in others(&dirs.all_volumes(), containers) {
        let removed = remove_large_dir(&node.images, &dirs.volumes(&id)).await;
        log("volumes", &id, removed);
    }
}

/// Removes systemd's scopes and slices of removed objects.
async fn sweep_units(node: &Node, pods: &HashSet<String>, containers: &HashSet<String>) {
    let Some(systemd) = node.cgroups.systemd() else {
        return;
    };
    let mut units = match systemd.units().await {
        Ok(units) => units,
        Err(error) => {
            tracing::error!(%error, "look for units that no record owns");
            return;
        }
    };
    units.retain(|unit| !pods.contains(&unit.id) && !containers.contains(&unit.id));
    let (scopes, mut slices): (Vec<_>, Vec<_>) = units
        .into_iter()
        .map(|unit| unit.name)
        .partition(|name| name.ends_with(".scope"));
    for name in scopes {
        log("unit", &name, systemd.kill(&name).await);
    }
    // Children first: a unit in a slice has the longer name.
    slices.sort_by_key(|name| std::cmp::Reverse(name.len()));
    for name in slices {
        match node.cgroups.stop_slice(&name).await {
            Ok(true) => tracing::warn!(id = name, "slice without a pod: stopped"),
            // The unit is in use.
            Ok(false) => {}
            Err(error) => tracing::error!(id = name, %error, "slice without a pod"),
        }
    }
}

/// Ids of entries in `dir` that are not among the owners'.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
fn others(dir: &Path, owners: &HashSet<String>) -> Vec<String> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|id| !owners.contains(id))
        .collect()
}

fn log<E: std::fmt::Display>(what: &str, id: &str, result: std::result::Result<(), E>) {
    match result {
        Ok(()) => tracing::warn!(id, "{what} without a record: removed"),
        Err(error) => {
            tracing::error!(id, %error, "{what} without a record: could not be removed; tried again at the next start")
        }
    }
}
