//! Removes objects without a record at the end of a recovery. Held objects have records.

use std::{collections::HashSet, fs, path::PathBuf};

use super::{dirs::remove_large_dir, node::Node, pods::Pods, registry::Registry};
use crate::blocking::blocking;

/// Everything is listed before the owners are: what is made meanwhile has its owner before its
/// first trace, and is not among the others.
pub(super) async fn sweep(cx: &Pods) {
    let (node, registry) = (&cx.node, &cx.registry);
    let valid = || owners(registry).0;
    if let Err(error) = node.machine.gc(&valid).await {
        tracing::error!(%error, "give back the networks of sandboxes that are gone");
    }
    sweep_pods(node, registry).await;
    sweep_containers(node, registry).await;
    sweep_units(node, registry).await;
}

/// Ids of pods and of containers that have a record, readable or not.
fn owners(registry: &Registry) -> (HashSet<String>, HashSet<String>) {
    let held = registry.held();
    let mut containers: HashSet<_> = held.containers.keys().cloned().collect();
    let mut pods: HashSet<_> = held.pods.keys().cloned().collect();
    pods.extend(held.containers.values().filter_map(|c| c.pod.clone()));
    for pod in registry.all() {
        containers.extend(pod.containers().iter().map(|one| one.id.clone()));
        pods.insert(pod.id.clone());
    }
    (pods, containers)
}

async fn sweep_pods(node: &Node, registry: &Registry) {
    let dirs = &node.dirs;
    let mut namespaces = all(dirs.all_namespaces()).await;
    let mut files = all(dirs.all_files()).await;
    let mut pauses = all(dirs.pauses()).await;
    let mut volumes: Vec<_> = node.images.in_use().pods.into_iter().collect();
    let (pods, _) = owners(registry);
    for ids in [&mut namespaces, &mut files, &mut pauses, &mut volumes] {
        ids.retain(|id| !pods.contains(id));
    }
    for id in namespaces {
        log("namespaces", &id, node.unpin(&id).await);
    }
    for id in files {
        log("files", &id, node.remove_files(&id).await);
    }
    for id in pauses {
        let ended = node.end(&dirs.pause(&id)).await;
        log("pause process", &id, ended);
    }
    for id in volumes {
        let released = node.images.release_image_volumes(&id).await;
        log("image volumes", &id, released);
    }
}

async fn sweep_containers(node: &Node, registry: &Registry) {
    let dirs = &node.dirs;
    let mut monitors = all(dirs.containers()).await;
    let (mut roots, mut volumes) = (all(dirs.roots()).await, all(dirs.all_volumes()).await);
    let mut specs = node.specs.ids().await.unwrap_or_default();
    let (_, containers) = owners(registry);
    for ids in [&mut monitors, &mut roots, &mut volumes, &mut specs] {
        ids.retain(|id| !containers.contains(id));
    }
    for id in monitors {
        let ended = node.end(&dirs.container(&id)).await;
        log("processes", &id, ended);
    }
    for id in roots {
        let released = node.images.release_rootfs(&id).await;
        log("root file system", &id, released);
    }
    for id in volumes {
        let removed = remove_large_dir(&node.images, &dirs.volumes(&id)).await;
        log("volumes", &id, removed);
    }
    for id in specs {
        log("spec", &id, node.specs.remove(&id).await);
    }
}

/// Removes systemd's scopes and slices of removed objects.
async fn sweep_units(node: &Node, registry: &Registry) {
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
    let (pods, containers) = owners(registry);
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

/// The ids of the entries in `dir`.
#[expect(clippy::disallowed_methods, reason = "in blocking()")]
async fn all(dir: PathBuf) -> Vec<String> {
    let ids = move || {
        let entries = fs::read_dir(dir).into_iter().flatten();
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect()
    };
    blocking(ids).await
}

fn log<E: std::fmt::Display>(what: &str, id: &str, result: std::result::Result<(), E>) {
    match result {
        Ok(()) => tracing::warn!(id, "{what} without a record: removed"),
        Err(error) => {
            tracing::error!(id, %error, "{what} without a record: could not be removed; tried again at the next start")
        }
    }
}
