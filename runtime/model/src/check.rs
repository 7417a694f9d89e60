//! The invariants of a node.

use std::{fs, path::PathBuf};

use cairn::pod::{
    record::{ContainerPhase, Mark, PodPhase},
    registry::Registry,
};

use crate::world::World;

impl World {
    /// All required plugins answered for every listed object.
    pub(crate) fn check_made(&self, registry: &Registry) {
        let seen = self.plugins.seen.lock();
        let required = || self.plan.plugins.iter().filter(|plugin| plugin.required);
        let check = |id: &str| {
            for plugin in required() {
                if !seen.answered.contains(&(plugin.id, id.to_owned())) {
                    self.memory
                        .fault(format!("made without {}: {id}", plugin.id));
                }
            }
        };
        for pod in registry.pods() {
            let record = pod.cell.get();
            if record.phase == PodPhase::Ready {
                check(&pod.id);
            }
            for container in pod.containers() {
                let record = container.cell.get();
                if record.phase != ContainerPhase::Creating {
                    check(&container.id);
                }
                let dir = self.path("state/containers").join(&container.id);
                if record.exit.reason == "MonitorLost" && !self.memory.0.lock().lost.contains(&dir)
                {
                    self.memory
                        .fault(format!("its exit was lost: {}", container.id));
                }
            }
        }
    }

    /// Recovery completes and reports the last daemon's work before serving (G-13 to G-19).
    pub(crate) fn check_recovered(&self, registry: &Registry, running: &[PathBuf]) {
        for pod in registry.all() {
            let record = pod.cell.get();
            let begun = |what: &str, mark: Mark| {
                if mark == Mark::Begun {
                    self.memory
                        .fault(format!("not resumed: the {what} of {}", pod.id));
                }
            };
            if record.failed_step.is_none() {
                begun("run", record.hooks.run);
                begun("stop", record.hooks.stop);
                begun("removal", record.hooks.remove);
            }
            for container in pod.containers() {
                let record = container.cell.get();
                let dir = self.path("state/containers").join(&container.id);
                // Others may have ended just now.
                let had_ended = record.phase == ContainerPhase::Exited && !running.contains(&dir);
                if had_ended && record.hooks.stop != Mark::Done {
                    self.memory
                        .fault(format!("an exit that was not reported: {}", container.id));
                }
            }
        }
    }

    /// Nothing is left, and no plugin expects anything.
    pub(crate) fn check(&self) -> Vec<String> {
        let mut faults = std::mem::take(&mut self.memory.0.lock().faults);
        faults.extend(self.memory.left());
        for dir in [
            "root/pods",
            "root/containers",
            "root/specs",
            "root/roots",
            "root/volumes",
            "state/pods",
            "state/containers",
            "state/pause",
            "state/ns",
            "state/image-volumes",
            "sys/fs/cgroup",
        ] {
            for entry in fs::read_dir(self.path(dir)).into_iter().flatten().flatten() {
                faults.push(format!(
                    "left: {dir}/{}",
                    entry.file_name().to_string_lossy()
                ));
            }
        }
        faults
    }

    /// Connected plugins got every end, and permanent plugins the end of every object.
    pub(crate) fn check_reported(&self) {
        for plugin in self.plan.plugins.iter().filter(|plugin| plugin.in_process) {
            for untold in self.plugins.untold(plugin) {
                self.memory.fault(untold);
            }
        }
        for instance in &self.plugins.seen.lock().instances {
            let instance = instance.lock();
            if instance.over {
                continue;
            }
            for id in instance.untold() {
                self.memory
                    .fault(format!("{}: no event of the end of {id}", instance.name));
            }
        }
    }
}
