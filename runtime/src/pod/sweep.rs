//! What no record owns, at the end of a recovery: it is removed. What is held is owned.

use std::{collections::HashSet, fs, path::Path};

use super::{dirs::remove_large_dir, remove_by_id::RemoveById};

impl RemoveById {
    /// At the end of a recovery alone: a pod that is being made is not among the owners.
    pub(super) async fn sweep(&self) {
        let (pods, containers) = self.owners();
        if let Err(error) = self.processes.machine.gc(&pods).await {
            tracing::error!(%error, "give back the networks of sandboxes that are gone");
        }
        self.sweep_pods(&pods).await;
        self.sweep_containers(&containers).await;
        self.sweep_units(&pods, &containers).await;
        for id in self.images.in_use().pods {
            if !pods.contains(&id) {
                let result = self.images.release_image_volumes(&id).await;
                log("image volumes", &id, result);
            }
        }
        for id in self.specs.ids().unwrap_or_default() {
            if !containers.contains(&id) {
                log("spec", &id, self.specs.remove(&id).await);
            }
        }
    }

    /// Ids of pods and of containers that have a record, readable or not.
    fn owners(&self) -> (HashSet<String>, HashSet<String>) {
        let held = self.registry.held();
        let mut containers: HashSet<_> = held.containers.keys().cloned().collect();
        let mut pods: HashSet<_> = held.pods.keys().cloned().collect();
        pods.extend(held.containers.values().filter_map(|c| c.pod.clone()));
        for pod in self.registry.pods() {
            containers.extend(pod.containers().iter().map(|one| one.id.clone()));
            pods.insert(pod.id.clone());
        }
        (pods, containers)
    }

    async fn sweep_pods(&self, pods: &HashSet<String>) {
        let (dirs, sandboxes) = (&self.processes.dirs, &self.sandboxes);
        for id in others(&dirs.all_namespaces(), pods) {
            log("namespaces", &id, sandboxes.unpin(&id).await);
        }
        for id in others(&dirs.all_files(), pods) {
            log("files", &id, sandboxes.remove_files(&id).await);
        }
        for id in others(&dirs.pauses(), pods) {
            let ended = self.processes.end(&dirs.pause(&id)).await;
            log("pause process", &id, ended);
        }
    }

    async fn sweep_containers(&self, containers: &HashSet<String>) {
        let dirs = &self.processes.dirs;
        for id in others(&dirs.containers(), containers) {
            let ended = self.processes.end(&dirs.container(&id)).await;
            log("processes", &id, ended);
        }
        for id in others(&dirs.roots(), containers) {
            let released = self.images.release_rootfs(&id).await;
            log("root file system", &id, released);
        }
        for id in others(&dirs.all_volumes(), containers) {
            let removed = remove_large_dir(&self.images, &dirs.volumes(&id)).await;
            log("volumes", &id, removed);
        }
    }

    /// systemd's scopes and slices that were made for what is no more.
    async fn sweep_units(&self, pods: &HashSet<String>, containers: &HashSet<String>) {
        let Some(systemd) = self.processes.cgroups.systemd() else {
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
        // From the bottom up: what lies in a slice has the longer name.
        slices.sort_by_key(|name| std::cmp::Reverse(name.len()));
        for name in slices {
            match self.processes.cgroups.stop_slice(&name).await {
                Ok(true) => tracing::warn!(id = name, "slice without a pod: stopped"),
                // Others have something in it.
                Ok(false) => {}
                Err(error) => tracing::error!(id = name, %error, "slice without a pod"),
            }
        }
    }
}

/// Ids of what lies in `dir` and is not among the owners'.
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
