//! What a restart makes of the records (CRI-805): of pods here, of their containers in `recover_container.rs`. Runs before any
//! RPC is served.
//!
//! | record | found | becomes |
//! |---|---|---|
//! | pod creating | anything | undone, plugins told Stop and Remove if they were asked |
//! | pod ready | namespaces (and pause) there | READY |
//! | pod ready | otherwise, or another boot | NOTREADY; StopPodSandbox gives back what is left |
//! | container creating | anything | undone |
//! | container created | monitor that was not started | it undoes itself; CREATED |
//! | container running | monitor answers | RUNNING, or EXITED with its code |
//! | container running | exit file, no monitor | EXITED with that code |
//! | container running | nothing | EXITED 255 |
//! | removal begun | anything | removed |
//! | any, unreadable | anything | held as it is (`held.rs`) |
//! | namespaces, roots, specs without record | | removed (`sweep.rs`) |

use std::{fs, sync::Arc};

use tokio::{sync::mpsc, task::JoinSet};

use super::{
    driver::Driver,
    error::Result,
    held::AllHeld,
    hooks::Hooks,
    message::Describe,
    pause::is_exposed,
    plugins::Plugins,
    record::{ContainerPhase, ContainerRecord, Mark, PodPhase, PodRecord},
    recover_container::{log_failure, recover_container},
    registry::Registry,
    remove_by_id::RemoveById,
    request::Message,
    required,
    run_pod_sandbox::RunPodSandbox,
    spec::SpecStore,
    state::{Container, Pod},
    steps::Steps,
};
use crate::{
    config::Config,
    oci::annotations,
    store::{Cell, Store},
};

/// For the log.
#[derive(Debug, Default)]
pub struct Summary {
    pub pods: usize,
    pub containers: usize,
    pub held: usize,
}

pub struct Recovery {
    pub registry: Arc<Registry>,
    pub pods: Store<PodRecord>,
    pub containers: Store<ContainerRecord>,
    pub specs: SpecStore,
    pub describe: Describe,
    pub hooks: Arc<Hooks>,
    pub run_pod_sandbox: Arc<RunPodSandbox>,
    pub steps: Arc<Steps>,
    pub remove_by_id: Arc<RemoveById>,
}

impl Recovery {
    /// What is rolled back counts as being removed, in memory, from the start: plugins that are
    /// synchronised meanwhile do not find it in their lists (CONTRACT.md, *Joining*).
    ///
    /// # Errors
    /// When the store itself cannot be read, or NRI cannot start. Trouble with one object is logged and stays with it.
    pub async fn run(self, config: &Config, plugins: Plugins) -> Result<Summary> {
        let rebooted = self.rebooted();
        let (pods, unreadable) = self.pods.load(rebooted)?;
        let mut held = AllHeld::default();
        for found in unreadable {
            held.hold_pod(found);
        }
        let (containers, unreadable) = self.containers.load(rebooted)?;
        for found in unreadable {
            held.hold_container(found, |id| self.pod_by_spec(id));
        }
        let (containers, of_held): (Vec<_>, Vec<_>) = containers
            .into_iter()
            .partition(|record| !held.pods.contains_key(&record.pod));
        for record in of_held {
            let path = self.containers.path(&record.id);
            held.hold_with_its_pod(record, path);
        }
        let summary = Summary {
            pods: pods.len(),
            containers: containers.len(),
            held: held.pods.len() + held.containers.len(),
        };
        report(&held);
        self.registry.hold(held);
        let mut recovered = Vec::new();
        for mut record in pods {
            if record.phase == PodPhase::Creating {
                record.hooks.remove = Mark::Begun;
            }
            recovered.push(Pod::new(Cell::of(self.pods.clone(), record)));
        }
        let orphans = self.adopt(&recovered, containers);
        for (pod, _) in &recovered {
            know_what_was_used(pod);
        }
        for (pod, _) in &recovered {
            self.registry.publish(pod);
            if config.nri.enable {
                self.keep_messages(pod).await;
            }
        }
        let required = self.describe.dirs.required_plugins();
        required::compare_with_last_start(&required, &config.nri, &self.steps.unsynced);
        // Plugins that come with us are synchronised now; what recovery finds they get as events.
        self.hooks.start(config, plugins).await?;
        let mut work = JoinSet::new();
        let all = Arc::new(self);
        for (pod, queue) in recovered {
            work.spawn(Arc::clone(&all).pod(pod, queue));
        }
        for orphan in orphans {
            work.spawn(Arc::clone(&all).remove_orphan(orphan));
        }
        while let Some(end) = work.join_next().await {
            if let Err(error) = end {
                tracing::error!(%error, "recovery of an object broke off");
            }
        }
        all.remove_by_id.sweep().await;
        all.remember_boot().await;
        Ok(summary)
    }

    /// The machine has, since a daemon has last recovered here.
    #[expect(
        clippy::disallowed_methods,
        reason = "at the start, before anybody is served"
    )]
    fn rebooted(&self) -> bool {
        let processes = &self.steps.container_exit.processes;
        fs::read_to_string(processes.dirs.boot_id()).is_ok_and(|was| was != processes.boot_id)
    }

    /// Last: a recovery that did not end is one of the same reboot. A disk that refuses keeps nobody from serving.
    #[expect(
        clippy::disallowed_methods,
        reason = "at the start, before anybody is served"
    )]
    async fn remember_boot(&self) {
        let (processes, unsynced) = (&self.steps.container_exit.processes, &self.steps.unsynced);
        let (path, id) = (processes.dirs.boot_id(), processes.boot_id.as_bytes());
        let known = fs::read(&path).is_ok_and(|was| was == id);
        let written = match known {
            true => Ok(()),
            false => unsynced.replace(&path, id),
        };
        if let Err(error) = written.and(unsynced.sync().await) {
            tracing::warn!(%error, "what recovery has found is not on disk");
        }
    }

    /// The pod of a container whose record does not tell: its spec does.
    fn pod_by_spec(&self, container: &str) -> Option<String> {
        let spec = self.specs.read_blocking(container).ok()?.spec;
        let all = spec.annotations().as_ref()?;
        all.get(annotations::SANDBOX_ID).cloned()
    }

    /// Hangs containers below their pods; those without one are returned.
    fn adopt(
        &self,
        pods: &[(Arc<Pod>, mpsc::Receiver<Message>)],
        containers: Vec<ContainerRecord>,
    ) -> Vec<ContainerRecord> {
        let mut orphans = Vec::new();
        for mut record in containers {
            if record.phase == ContainerPhase::Creating {
                record.hooks.remove = Mark::Begun;
            }
            match pods.iter().find(|(pod, _)| pod.id == record.pod) {
                Some((pod, _)) => {
                    let cell = Cell::of(self.containers.clone(), record);
                    pod.insert(Arc::new(Container::new(cell)));
                }
                None => orphans.push(record),
            }
        }
        orphans
    }

    /// What plugins are told of containers that were there before.
    async fn keep_messages(&self, pod: &Pod) {
        for container in pod.containers() {
            if let Ok(specs) = self.specs.read(&container.id).await {
                let message = self.describe.from_spec(pod, &container, &specs);
                container.set_message(&message);
            }
        }
    }

    async fn pod(self: Arc<Self>, pod: Arc<Pod>, queue: mpsc::Receiver<Message>) {
        let record = pod.cell.get();
        let rebooted = record.boot_id != self.steps.container_exit.processes.boot_id;
        if record.phase == PodPhase::Creating {
            if let Err(error) = self.run_pod_sandbox.undo_all(&pod).await {
                tracing::error!(pod = %pod.id, %error, "a sandbox that was being made cannot be undone");
                let failed = pod
                    .cell
                    .record_fact(|record| {
                        record.phase = PodPhase::NotReady;
                        record.failed_step = Some(error.text.clone());
                        // The undo has told plugins both, if they were told of Run.
                        record.hooks.stop = Mark::Done;
                        record.hooks.remove = Mark::Done;
                    })
                    .await;
                log_failure(&pod, "record the failed undo", failed.map(drop));
            } else {
                self.registry.forget(&pod.cell.get());
                return;
            }
        } else if record.phase == PodPhase::Ready && (rebooted || !self.intact(&pod).await) {
            tracing::warn!(pod = %pod.id, rebooted, "the sandbox is gone: NOTREADY");
            pod.cell
                .note(|record| record.phase = PodPhase::NotReady)
                .await;
        }
        if is_exposed(&pod.cell.get()) {
            tracing::warn!(
                pod = %pod.id,
                name = %pod.cell.get().name_key(),
                "created by an older version, whose pause process lets a container take over the node: remove this \
                 sandbox and create it anew (SECURITY.md, Advisories)"
            );
        }
        // The driver first: what recovery finds goes through its queue.
        let driver = Driver::new(Arc::clone(&pod), queue, Arc::clone(&self.steps));
        driver.start();
        for container in pod.containers() {
            let result = recover_container(&self.steps, &pod, &container, rebooted).await;
            log_failure(&pod, "recover a container", result);
        }
        let hooks = pod.cell.get().hooks.clone();
        if hooks.remove == Mark::Begun {
            let removed = pod.ask(Message::RemovePod).await;
            log_failure(&pod, "resume its removal", removed);
        } else if hooks.stop == Mark::Begun {
            log_failure(&pod, "resume its stop", pod.ask(Message::StopPod).await);
        }
    }

    /// Every pinned namespace is still a mount, and the pause still runs.
    async fn intact(&self, pod: &Arc<Pod>) -> bool {
        let record = pod.cell.get();
        let namespaces = &record.namespaces;
        let pinned = [
            &namespaces.net,
            &namespaces.ipc,
            &namespaces.uts,
            &namespaces.user,
        ];
        let machine = &self.steps.container_exit.processes.machine;
        let mut pinned = pinned.into_iter().flatten();
        if !pinned.all(|path| machine.is_pinned(path)) {
            return false;
        }
        match &record.pause {
            Some(_) => {
                let pauses = &self.run_pod_sandbox.pauses;
                pauses.alive(pod).await.unwrap_or(false)
            }
            None => true,
        }
    }

    /// A container whose pod's record is gone: force-removed (CRI-805).
    async fn remove_orphan(self: Arc<Self>, record: ContainerRecord) {
        let id = &record.id;
        tracing::warn!(container = %id, pod = %record.pod, "no such sandbox: removed");
        if let Err(error) = self.remove_by_id.orphan(&record).await {
            tracing::error!(container = %id, %error, "remove a container without a sandbox");
        }
    }
}

fn report(held: &AllHeld) {
    for pod in held.pods.values() {
        tracing::error!("{}", pod.refusal("sandbox"));
    }
    for container in held.containers.values() {
        tracing::error!("{}", container.refusal("container"));
    }
}

/// Whether a client was told of what it had asked for is not known: if it asks again, it gets the same. But for what was
/// used since: somebody named that.
fn know_what_was_used(pod: &Pod) {
    let containers = pod.containers();
    if !containers.is_empty() {
        pod.set_known();
    }
    let used = |c: &&Arc<Container>| c.cell.get().phase != ContainerPhase::Created;
    containers.iter().filter(used).for_each(|c| c.set_known());
}
