//! The invariants of a node, checked while it works, at rest, and at the end.

use std::{collections::BTreeSet, fs, path::PathBuf, sync::Arc, time::Duration};

use cairn::{
    pod::{
        pods::Pods,
        record::{ContainerPhase, ContainerRecord, Mark, PodPhase},
        registry::Registry,
        state::Container,
    },
    seeded,
};
use tokio::time::Instant;

use crate::{
    bounds::EXIT,
    rule::{Fault, Rule},
    values::{number_in, number_of},
    world::World,
};

impl World {
    fn dir_of(&self, container: &str) -> PathBuf {
        self.path("state/containers").join(container)
    }

    /// Each second of a life, until all work is over.
    pub(crate) async fn watch(self, pods: Arc<Pods>) {
        let mut late = BTreeSet::new();
        while !self.memory.0.lock().is_over {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.check_turns();
            for container in containers(&pods.registry) {
                self.check_exit(&container, &mut late);
                self.check_eviction(&container, &mut late);
            }
        }
    }

    fn check_turns(&self) {
        for (what, took) in seeded::spans() {
            if took > self.plan.turn() {
                let text = format!("the {what} is held for {:.1} s", took.as_secs_f64());
                self.memory.fault(Rule::Turn, text);
            }
        }
    }

    fn check_exit(&self, container: &Container, late: &mut BTreeSet<String>) {
        let dir = self.dir_of(&container.id);
        let ended = {
            let inner = self.memory.0.lock();
            let exit = inner.exits.get(&dir).map(|(code, at)| (*code, *at));
            exit.or(inner.lost.get(&dir).map(|at| (255, *at)))
        };
        let Some((code, Some(at))) = ended else {
            return;
        };
        let phase = container.cell.get().phase;
        // A start that fails records it.
        let is_late = phase == ContainerPhase::Running && at.elapsed() > EXIT;
        if is_late && late.insert(container.id.clone()) {
            let text = format!("{} has ended with {code}, and is {phase:?}", container.id);
            self.memory.fault(Rule::Exit, text);
        }
    }

    fn check_eviction(&self, container: &Container, late: &mut BTreeSet<String>) {
        let since = self.memory.0.lock().evicted.get(&container.id).copied();
        let is_late = |since: Instant| since.elapsed() > self.plan.stop(Duration::ZERO);
        let runs = container.cell.get().phase == ContainerPhase::Running;
        if since.flatten().is_some_and(is_late)
            && runs
            && late.insert(format!("evicted {}", container.id))
        {
            let text = format!("runs after its eviction: {}", container.id);
            self.memory.fault(Rule::Evicted, text);
        }
    }

    /// All required plugins answered for every listed object.
    pub(crate) fn check_made(&self, registry: &Registry) {
        let seen = self.plugins.seen.lock();
        let required = || self.plan.plugins.iter().filter(|plugin| plugin.required);
        let check = |id: &str| {
            for plugin in required() {
                if !seen.answered.contains(&(plugin.id, id.to_owned())) {
                    let text = format!("made without {}: {id}", plugin.id);
                    self.memory.fault(Rule::Required, text);
                }
            }
        };
        for pod in registry.pods() {
            if pod.cell.get().phase == PodPhase::Ready {
                check(&pod.id);
            }
            for container in pod.containers() {
                if container.cell.get().phase != ContainerPhase::Creating {
                    check(&container.id);
                }
            }
        }
    }

    /// When all that was begun has ended.
    pub(crate) fn check_at_rest(&self, registry: &Registry) {
        self.check_resumed(registry);
        for container in containers(registry) {
            let record = container.cell.get();
            self.check_exit(&container, &mut BTreeSet::new());
            self.check_code(&container.id, &record);
            self.check_values(&container.id, &record);
        }
    }

    /// The work of the last life was completed and reported (G-13 to G-19).
    fn check_resumed(&self, registry: &Registry) {
        for pod in registry.all() {
            let record = pod.cell.get();
            let begun = |what: &str, mark: Mark| {
                if mark == Mark::Begun {
                    let text = format!("not resumed: the {what} of {}", pod.id);
                    self.memory.fault(Rule::Plugins, text);
                }
            };
            if record.failed_step.is_none() {
                begun("run", record.hooks.run);
                begun("stop", record.hooks.stop);
                begun("removal", record.hooks.remove);
            }
        }
        for container in containers(registry) {
            let record = container.cell.get();
            if record.phase == ContainerPhase::Exited && record.hooks.stop != Mark::Done {
                let text = format!("an exit that was not reported: {}", container.id);
                self.memory.fault(Rule::Plugins, text);
            }
        }
    }

    fn check_code(&self, id: &str, record: &ContainerRecord) {
        if record.phase != ContainerPhase::Exited || record.exit.reason == "StartError" {
            return;
        }
        let dir = self.dir_of(id);
        let (code, reason) = (record.exit.code, &record.exit.reason);
        let (ended, is_lost) = {
            let inner = self.memory.0.lock();
            (
                inner.exits.get(&dir).copied(),
                inner.lost.contains_key(&dir),
            )
        };
        let is_right = ended.is_some_and(|(ended, _)| ended == code);
        let is_right = is_right || is_lost && reason == "MonitorLost";
        if !is_right {
            let text = format!("{id} is recorded with {code} {reason}; its monitor: {ended:?}");
            self.memory.fault(Rule::Exit, text);
        }
    }

    fn check_values(&self, id: &str, record: &ContainerRecord) {
        let fault = |text: String| self.memory.fault(Rule::Values, format!("{id}: {text}"));
        let linux = &record.resources;
        let recorded = match number_of(linux.memory_limit_in_bytes, linux.cpu_quota) {
            Ok(number) => number,
            Err(torn) => return fault(format!("the record has {torn}")),
        };
        let (allowed, acknowledged) = {
            let values = &self.memory.0.lock().values;
            (values.allow(id, recorded), values.acknowledged(id))
        };
        if !allowed {
            fault(format!(
                "the record has {recorded}; acknowledged: {acknowledged:?}"
            ));
        }
        if record.phase != ContainerPhase::Running {
            return;
        }
        let dir = self
            .path("sys/fs/cgroup")
            .join(record.cgroup.trim_start_matches('/'));
        let file = |name: &str| seeded::read_kernel(&dir.join(name)).unwrap_or_default();
        match number_in(&file("memory.max"), &file("cpu.max")) {
            Ok(number) if number == recorded => {}
            Ok(number) => fault(format!("the cgroup has {number}, the record {recorded}")),
            Err(torn) => fault(format!("the cgroup has {torn}, the record {recorded}")),
        }
    }

    /// When all pods were removed.
    pub(crate) fn check_end(&self, registry: &Registry) {
        let pods = std::mem::take(&mut self.memory.0.lock().pods);
        for pod in pods.iter().filter_map(std::sync::Weak::upgrade) {
            if registry.any(&pod.id).is_none() {
                let text = format!("the driver of {} is left", pod.id);
                self.memory.fault(Rule::Leaked, text);
            }
        }
        self.check_turns();
        self.check_reported();
    }

    /// Nothing is left, and no plugin expects anything.
    pub(crate) fn check(&self) -> Vec<Fault> {
        let dir = format!("{}/", self.path("").display());
        let left = |text: String| self.memory.fault(Rule::Left, text.replace(&dir, ""));
        self.memory.left().into_iter().for_each(left);
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
                let name = entry.file_name();
                let name = name.to_string_lossy();
                if !name.starts_with("cgroup.") {
                    left(format!("{dir}/{name}"));
                }
            }
        }
        std::mem::take(&mut self.memory.0.lock().faults)
    }

    /// Connected plugins got every end, and permanent plugins the end of every object.
    fn check_reported(&self) {
        let fault = |text: String| self.memory.fault(Rule::Plugins, text);
        for plugin in self.plan.plugins.iter().filter(|plugin| plugin.in_process) {
            self.plugins.untold(plugin).into_iter().for_each(fault);
        }
        for instance in &self.plugins.seen.lock().instances {
            let instance = instance.lock();
            if instance.over {
                continue;
            }
            for id in instance.untold() {
                fault(format!("{}: no event of the end of {id}", instance.name));
            }
        }
    }
}

fn containers(registry: &Registry) -> Vec<Arc<Container>> {
    let pods = registry.all().into_iter();
    pods.flat_map(|pod| pod.containers()).collect()
}
