//! Recovery of the records after a restart (CRI-805): `recover_pod.rs` has the step of a pod, and
//! `recover_container.rs`. Its begin is before any RPC is served, its end beside the service.
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

use std::{sync::Arc, time::Duration};

use cairn_monitor::own_file;
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    driver::Driver,
    error::{AtStep as _, Result},
    held::AllHeld,
    message,
    node::Node,
    op::{Answer, Asker, Op, Request},
    plugins::Plugins,
    pods::Pods,
    record::{ContainerPhase, ContainerRecord, Mark, PodPhase},
    remove_by_id, required,
    state::{Container, Pod},
    sweep::sweep,
};
use crate::{clock, oci::annotations, store::Cell};

/// The time that the start waits for launched plugins. Those that are prompt know the objects before
/// they get events of recovery.
const PROMPT: Duration = Duration::from_millis(400);
/// The time that the start then waits for the state of objects. What takes longer, and all that is
/// owed to plugins, CNI and monitors, goes on while requests are served.
const FOUND: Duration = Duration::from_millis(400);

/// For the log.
#[derive(Debug, Default)]
pub struct Summary {
    pub pods: usize,
    pub containers: usize,
    pub held: usize,
}

pub struct Recovery {
    pub summary: Summary,
    /// The start of NRI if plugins hold it up: requests that plugins are asked about wait for it.
    pub nri: Option<AbortOnDropHandle<Result<()>>>,
    /// What goes on beside the service.
    pub rest: JoinHandle<()>,
}

/// Returns within [`PROMPT`], [`FOUND`] and the time of reading the records, whatever plugins, CNI
/// and monitors do. Each object is recovered by its pod's driver, so that a request that changes it
/// waits for that.
///
/// Objects that are rolled back count as being removed, in memory, from the start: plugins that are
/// synchronized meanwhile do not find them in their lists (CONTRACT.md, *Joining*).
///
/// # Errors
/// When the store cannot be read, or NRI cannot start. Errors of one object are only logged.
pub async fn run(cx: &Arc<Pods>) -> Result<Recovery> {
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
    let times = pods.iter().map(|pod| pod.created_at);
    let times = times.chain(containers.iter().map(ContainerRecord::newest_time));
    clock::go_on_from(times.max().unwrap_or(0));
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
    remember_boot(node).await;
    let required = node.dirs.required_plugins();
    required::compare_with_last_start(&required, &node.config.nri, &node.unsynced);
    // Those of plugins that are prompt get the results of recovery as events.
    let mut nri = AbortOnDropHandle::new(tokio::spawn({
        let cx = Arc::clone(cx);
        async move {
            let plugins = Plugins {
                node: Arc::clone(&cx.node),
                registry: Arc::clone(&cx.registry),
                log: cx.notices.log.clone(),
            };
            cx.notices.hooks.start(Arc::new(plugins)).await
        }
    }));
    let nri = match timeout(PROMPT, &mut nri).await {
        Ok(started) => {
            started.step("NRI").flatten()?;
            None
        }
        Err(_) => Some(nri),
    };
    let mut work = JoinSet::new();
    for (pod, queue) in recovered {
        let driver = Driver::new(Arc::clone(&pod), queue, Arc::clone(cx));
        work.spawn(resume(pod, driver.recover()));
    }
    for orphan in orphans {
        work.spawn(remove_orphan(Arc::clone(node), orphan));
    }
    let rest = tokio::spawn(finish(Arc::clone(cx), work));
    cx.recovering.close();
    // Else it goes on.
    let _ = timeout(FOUND, cx.recovering.wait()).await;
    Ok(Recovery { summary, nri, rest })
}

/// Waits for the steps of recovery, in the order of each object, and then resumes what the last
/// daemon had begun.
async fn resume(pod: Arc<Pod>, steps: Vec<Answer>) {
    for step in steps {
        let Ok(done) = step.await else { return };
        log_failure(&pod, "recovery", done);
    }
    let hooks = pod.cell.get().hooks.clone();
    if hooks.remove == Mark::Begun {
        let removed = pod.ask(Asker::Runtime, Op::RemovePod).await;
        return log_failure(&pod, "resume its removal", removed);
    }
    if hooks.stop == Mark::Begun {
        let stopped = pod.ask(Asker::Runtime, Op::StopPod).await;
        log_failure(&pod, "resume its stop", stopped);
    }
    for container in pod.containers() {
        if container.cell.get().hooks.remove == Mark::Begun {
            let removed = pod.ask_container(Asker::Runtime, &container.id, Op::Remove);
            log_failure(&pod, "resume the removal of a container", removed.await);
        }
    }
}

/// Waits for all objects, and removes what no record owns.
async fn finish(cx: Arc<Pods>, mut work: JoinSet<()>) {
    while let Some(end) = work.join_next().await {
        if let Err(error) = end {
            tracing::error!(%error, "recovery of an object broke off");
        }
    }
    sweep(&cx).await;
    if let Err(error) = cx.node.unsynced.sync().await {
        tracing::warn!(%error, "what recovery has found is not on disk");
    }
    tracing::info!("recovered");
}

/// Logs a failed step; recovery goes on.
fn log_failure<T>(pod: &Pod, step: &str, result: Result<T>) {
    if let Err(error) = result {
        tracing::error!(pod = %pod.id, step, %error, "a step of recovery failed");
    }
}

/// Whether the machine has rebooted since the last recovery.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
fn rebooted(node: &Node) -> bool {
    own_file::read_to_string(node.dirs.boot_id()).is_ok_and(|was| was != node.boot_id)
}

/// After blank records were removed, which it allows. Serving goes on if the disk fails.
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
        tracing::warn!(%error, "the boot is not on disk");
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
