//! Recovery of the records after a restart (CRI-805): pods here, their containers in
//! `recover_container.rs`. Runs before any RPC is served.
//!
//! | record | found | becomes |
//! |---|---|---|
//! | pod creating | anything | undone; plugins get Stop and Remove if they were asked |
//! | pod ready | namespaces (and pause) exist | READY |
//! | pod ready | otherwise, or another boot | NOTREADY; StopPodSandbox releases the rest |
//! | container creating | anything | undone |
//! | container created | monitor that was not started | it undoes itself; CREATED |
//! | container running | monitor answers | RUNNING, or EXITED with its code |
//! | container running | exit file, no monitor | EXITED with that code |
//! | container running | nothing | EXITED 255 |
//! | removal begun | anything | removed |
//! | any, unreadable | anything | held unchanged (`held.rs`) |
//! | namespaces, roots, specs without record | | removed (`sweep.rs`) |

use std::sync::Arc;

use cairn_monitor::own_file;
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    driver::Driver,
    error::Result,
    held::AllHeld,
    message,
    node::Node,
    op::{Asker, Op, Request},
    pause::{self, is_exposed},
    plugins::Plugins,
    pods::Pods,
    record::{ContainerPhase, ContainerRecord, Mark, PodPhase},
    recover_container::{log_failure, recover_container},
    remove_by_id, required, run_pod_sandbox,
    state::{Container, Pod},
    sweep::sweep,
};
use crate::{oci::annotations, store::Cell};

/// For the log.
#[derive(Debug, Default)]
pub struct Summary {
    pub pods: usize,
    pub containers: usize,
    pub held: usize,
}

/// Objects that are rolled back count as being removed, in memory, from the start: plugins that are
/// synchronized meanwhile do not find them in their lists (CONTRACT.md, *Joining*).
///
/// # Errors
/// When the store cannot be read, or NRI cannot start. Errors of one object are only logged.
pub async fn run(cx: &Arc<Pods>) -> Result<Summary> {
    let (node, registry) = (&cx.node, &cx.registry);
    let rebooted = rebooted(node);
    let (pods, unreadable) = node.pods.load(rebooted)?;
    let mut held = AllHeld::default();
    for found in unreadable {
        held.hold_pod(found);
    }
    let (containers, unreadable) = node.containers.load(rebooted)?;
    for found in unreadable {
        held.hold_container(found, |id| pod_by_spec(node, id));
    }
    let (containers, of_held): (Vec<_>, Vec<_>) = containers
        .into_iter()
        .partition(|record| !held.pods.contains_key(&record.pod));
    for record in of_held {
        let path = node.containers.path(&record.id);
        held.hold_with_its_pod(record, path);
    }
    let summary = Summary {
        pods: pods.len(),
        containers: containers.len(),
        held: held.pods.len() + held.containers.len(),
    };
    report(&held);
    registry.hold(held);
    let mut recovered = Vec::new();
    for mut record in pods {
        if record.phase == PodPhase::Creating {
            record.hooks.remove = Mark::Begun;
        }
        recovered.push(Pod::new(Cell::of(node.pods.clone(), record)));
    }
    let orphans = adopt(node, &recovered, containers);
    for (pod, _) in &recovered {
        know_what_was_used(pod);
    }
    for (pod, _) in &recovered {
        registry.publish(pod);
        if node.config.nri.enable {
            keep_messages(node, pod).await;
        }
    }
    let required = node.dirs.required_plugins();
    required::compare_with_last_start(&required, &node.config.nri, &node.unsynced);
    // In-process plugins are synchronized now; they get the results of recovery as events.
    let plugins = Plugins {
        node: Arc::clone(node),
        registry: Arc::clone(registry),
        log: cx.notices.log.clone(),
    };
    cx.notices.hooks.start(Arc::new(plugins)).await?;
    let mut work = JoinSet::new();
    for (pod, queue) in recovered {
        work.spawn(recover_pod(Arc::clone(cx), pod, queue));
    }
    for orphan in orphans {
        work.spawn(remove_orphan(Arc::clone(node), orphan));
    }
    while let Some(end) = work.join_next().await {
        if let Err(error) = end {
            tracing::error!(%error, "recovery of an object broke off");
        }
    }
    sweep(cx).await;
    remember_boot(node).await;
    Ok(summary)
}

/// Whether the machine has rebooted since the last recovery.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
fn rebooted(node: &Node) -> bool {
    own_file::read_to_string(node.dirs.boot_id()).is_ok_and(|was| was != node.boot_id)
}

/// Written last, so that a repeated recovery sees the reboot. Serving goes on if the disk fails.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
async fn remember_boot(node: &Node) {
    let unsynced = &node.unsynced;
    let (path, id) = (node.dirs.boot_id(), node.boot_id.as_bytes());
    let known = own_file::read(&path).is_ok_and(|was| was == id);
    let written = if known {
        Ok(())
    } else {
        unsynced.replace(&path, id)
    };
    if let Err(error) = written.and(unsynced.sync().await) {
        tracing::warn!(%error, "what recovery has found is not on disk");
    }
}

/// The pod of a container according to its spec, if its record does not name it.
fn pod_by_spec(node: &Node, container: &str) -> Option<String> {
    let spec = node.specs.read_blocking(container).ok()?.spec;
    let all = spec.annotations().as_ref()?;
    all.get(annotations::SANDBOX_ID).cloned()
}

/// Adds containers to their pods; returns those without one.
fn adopt(
    node: &Node,
    pods: &[(Arc<Pod>, mpsc::Receiver<Request>)],
    containers: Vec<ContainerRecord>,
) -> Vec<ContainerRecord> {
    let mut orphans = Vec::new();
    for mut record in containers {
        if record.phase == ContainerPhase::Creating {
            record.hooks.remove = Mark::Begun;
        }
        match pods.iter().find(|(pod, _)| pod.id == record.pod) {
            Some((pod, _)) => {
                let cell = Cell::of(node.containers.clone(), record);
                pod.insert(Arc::new(Container::new(cell)));
            }
            None => orphans.push(record),
        }
    }
    orphans
}

/// Keeps the NRI messages of existing containers.
async fn keep_messages(node: &Node, pod: &Pod) {
    for container in pod.containers() {
        if let Ok(specs) = node.specs.read(&container.id).await {
            container.set_message(&message::from_spec(node, pod, &container, &specs));
        }
    }
}

async fn recover_pod(cx: Arc<Pods>, pod: Arc<Pod>, queue: mpsc::Receiver<Request>) {
    let record = pod.cell.get();
    let rebooted = record.boot_id != cx.node.boot_id;
    if record.phase == PodPhase::Creating {
        if let Err(error) = run_pod_sandbox::undo_all(&cx, &pod).await {
            tracing::error!(pod = %pod.id, %error, "a sandbox that was being made cannot be undone");
            let failed = pod
                .cell
                .record_fact(|record| {
                    record.phase = PodPhase::NotReady;
                    record.failed_step = Some(error.text.clone());
                    // The undo has sent both to plugins, if they got Run.
                    record.hooks.stop = Mark::Done;
                    record.hooks.remove = Mark::Done;
                })
                .await;
            log_failure(&pod, "record the failed undo", failed);
        } else {
            cx.registry.forget(&pod.cell.get());
            return;
        }
    } else if record.phase == PodPhase::Ready && (rebooted || !is_intact(&cx, &pod).await) {
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
    // The driver starts first, because recovery uses its queue.
    let driver = Driver::new(Arc::clone(&pod), queue, Arc::clone(&cx));
    driver.start();
    for container in pod.containers() {
        let result = recover_container(&cx, &pod, &container, rebooted).await;
        log_failure(&pod, "recover a container", result);
    }
    let hooks = pod.cell.get().hooks.clone();
    if hooks.remove == Mark::Begun {
        let removed = pod.ask(Asker::Runtime, Op::RemovePod).await;
        log_failure(&pod, "resume its removal", removed);
    } else if hooks.stop == Mark::Begun {
        log_failure(
            &pod,
            "resume its stop",
            pod.ask(Asker::Runtime, Op::StopPod).await,
        );
    }
}

/// Whether every pinned namespace is still a mount and the pause process still runs.
async fn is_intact(cx: &Arc<Pods>, pod: &Arc<Pod>) -> bool {
    let record = pod.cell.get();
    let namespaces = &record.namespaces;
    let pinned = [
        &namespaces.net,
        &namespaces.ipc,
        &namespaces.uts,
        &namespaces.user,
    ];
    let machine = &cx.node.machine;
    let mut pinned = pinned.into_iter().flatten();
    if !pinned.all(|path| machine.is_pinned(path)) {
        return false;
    }
    match &record.pause {
        Some(_) => pause::alive(cx, pod).await.unwrap_or(false),
        None => true,
    }
}

/// Force-removes a container without a pod record (CRI-805).
async fn remove_orphan(node: Arc<Node>, record: ContainerRecord) {
    let id = &record.id;
    tracing::warn!(container = %id, pod = %record.pod, "no such sandbox: removed");
    if let Err(error) = remove_by_id::orphan(&node, &record).await {
        tracing::error!(container = %id, %error, "remove a container without a sandbox");
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

/// A client may not have received its answer; its repeated request gets the same object. Objects
/// with signs of use are excluded: a client has used their ids.
fn know_what_was_used(pod: &Pod) {
    let containers = pod.containers();
    if !containers.is_empty() {
        pod.set_known();
    }
    let used = |c: &&Arc<Container>| c.cell.get().phase != ContainerPhase::Created;
    containers.iter().filter(used).for_each(|c| c.set_known());
}
