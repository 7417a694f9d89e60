//! What a restart makes of the records (CRI-805). Runs before any RPC is served.
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
//! | namespaces, roots, specs without record | | removed |

use std::{collections::HashSet, fs, path::Path, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinSet};

use super::{
    Container, Pod,
    container::{self, dir, start::watch},
    driver::{ContainerWork, Driver, Message},
    error::{Result, Step as _},
    files::Files,
    messages, pause,
    record::{ContainerPhase, ContainerRecord, Mark, PodPhase, Process},
    stop,
};
use crate::{
    clock,
    monitor::{Ending, Reattached},
    services::Services,
    store::Cell,
};

/// A monitor that does not answer by then leaves its container UNKNOWN (CRI-805).
const ANSWER: Duration = Duration::from_secs(10);

/// For the log.
#[derive(Debug, Default)]
pub struct Summary {
    pub pods: usize,
    pub containers: usize,
    pub set_aside: usize,
}

/// What is rolled back counts as being removed, in memory, from the start: plugins that are
/// synchronised meanwhile do not find it in their lists (CONTRACT.md, *Joining*).
///
/// # Errors
/// When the store itself cannot be read. Trouble with one object is logged and stays with it.
pub async fn recover(services: &Arc<Services>) -> Result<Summary> {
    let (pods, mut set_aside) = services.pods.load()?;
    let (containers, more) = services.containers.load()?;
    set_aside.extend(more);
    for line in &set_aside {
        tracing::error!("record set aside: {line}");
    }
    let summary = Summary {
        pods: pods.len(),
        containers: containers.len(),
        set_aside: set_aside.len(),
    };
    let mut recovered = Vec::new();
    for mut record in pods {
        if record.phase == PodPhase::Creating {
            record.hooks.remove = Mark::Begun;
        }
        let cell = Cell::loaded(services.pods.clone(), record);
        recovered.push(Pod::new(Arc::clone(services), cell));
    }
    let orphans = adopt(services, &recovered, containers);
    for (pod, _) in &recovered {
        services.registry.publish(pod);
        keep_messages(pod).await;
    }
    // Plugins that come with us are synchronised now; what recovery finds they get as events.
    super::hooks::Hooks::start(services).await?;
    let mut work = JoinSet::new();
    for (pod, queue) in recovered {
        work.spawn(recover_pod(pod, queue));
    }
    for orphan in orphans {
        work.spawn(remove_orphan(Arc::clone(services), orphan));
    }
    while let Some(end) = work.join_next().await {
        if let Err(error) = end {
            tracing::error!(%error, "recovery of an object broke off");
        }
    }
    sweep(services).await;
    Ok(summary)
}

/// Hangs containers below their pods; those without one are returned.
fn adopt(
    services: &Arc<Services>,
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
                let cell = Cell::loaded(services.containers.clone(), record);
                pod.insert(Arc::new(Container::new(cell)));
            }
            None => orphans.push(record),
        }
    }
    orphans
}

/// What plugins are told of containers that were there before.
async fn keep_messages(pod: &Pod) {
    if !pod.services.config.nri.enable {
        return;
    }
    for container in pod.containers() {
        if let Ok(specs) = pod.services.specs.read(&container.id).await {
            container.set_message(messages::base(pod, &container, &specs));
        }
    }
}

async fn recover_pod(pod: Arc<Pod>, queue: mpsc::Receiver<Message>) {
    let record = pod.cell.get();
    let rebooted = record.boot_id != pod.services.boot_id;
    if record.phase == PodPhase::Creating {
        if let Err(error) = undo_creation(&pod).await {
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
            log(&pod, "record the failed undo", failed.map(drop));
        } else {
            pod.services.registry.forget(&pod.cell.get());
            return;
        }
    } else if record.phase == PodPhase::Ready && (rebooted || !intact(&pod).await) {
        tracing::warn!(pod = %pod.id, rebooted, "the sandbox is gone: NOTREADY");
        let changed = pod
            .cell
            .change(|record| record.phase = PodPhase::NotReady)
            .await;
        log(&pod, "record NOTREADY", changed.map(drop));
    }
    // The driver first: what recovery finds goes through its queue.
    let driver = tokio::spawn(Driver::new(Arc::clone(&pod), queue).run());
    for container in pod.containers() {
        let result = recover_container(&pod, &container, rebooted).await;
        log(&pod, "recover a container", result);
    }
    let hooks = pod.cell.get().hooks.clone();
    if hooks.remove == Mark::Begun {
        log(
            &pod,
            "resume its removal",
            pod.ask(Message::RemovePod).await,
        );
    } else if hooks.stop == Mark::Begun {
        log(&pod, "resume its stop", pod.ask(Message::StopPod).await);
    }
    drop(driver);
}

fn log<E: std::fmt::Display>(pod: &Pod, step: &str, result: std::result::Result<(), E>) {
    if let Err(error) = result {
        tracing::error!(pod = %pod.id, step, %error, "recovery");
    }
}

async fn undo_creation(pod: &Arc<Pod>) -> Result<()> {
    if pod.cell.get().hooks.run != Mark::None {
        pod.services.hooks.undo_run_pod(pod).await;
    }
    pause::stop(pod).await?;
    stop::release_network(pod).await?;
    stop::release_namespaces(pod).await?;
    stop::release_cgroup(pod).await?;
    pod.cell.delete().await?;
    Ok(())
}

/// Every pinned namespace is still a mount, and the pause still runs.
async fn intact(pod: &Arc<Pod>) -> bool {
    let record = pod.cell.get();
    let namespaces = &record.namespaces;
    let pinned = [
        &namespaces.net,
        &namespaces.ipc,
        &namespaces.uts,
        &namespaces.user,
    ];
    if !pinned.into_iter().flatten().all(|path| is_namespace(path)) {
        return false;
    }
    match &record.pause {
        Some(_) => pause::alive(&pod.services, &pod.id).await.unwrap_or(false),
        None => true,
    }
}

/// A pin that lost its mount is an empty file on the state directory's own file system.
fn is_namespace(path: &Path) -> bool {
    const NSFS_MAGIC: i64 = 0x6e73_6673;
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == NSFS_MAGIC)
}

async fn recover_container(
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    rebooted: bool,
) -> Result<()> {
    let record = container.cell.get();
    match record.phase {
        ContainerPhase::Creating => {
            container::create::undo(pod, container).await;
            pod.forget(&container.id);
            return Ok(());
        }
        ContainerPhase::Running | ContainerPhase::Unknown if rebooted => {
            ended(pod, container, Ending::Lost).await?;
        }
        ContainerPhase::Created | ContainerPhase::Running | ContainerPhase::Unknown => {
            reattach(pod, container, true).await?;
        }
        // The exit was recorded, plugins may not have been told.
        ContainerPhase::Exited => {
            container::exit::give_back(pod, container).await;
            container::exit::tell(pod, container).await;
        }
    }
    if container.cell.get().hooks.remove == Mark::Begun {
        pod.ask_container(&container.id, ContainerWork::Remove)
            .await?;
    }
    Ok(())
}

/// Looks again for a monitor that did not answer, until it does or the container is gone.
fn look_again(pod: &Arc<Pod>, container: &Arc<Container>) {
    let (pod, container) = (Arc::clone(pod), Arc::clone(container));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(ANSWER).await;
            let waits = container.cell.get().phase == ContainerPhase::Unknown;
            if !waits || pod.container(&container.id).is_none() {
                return;
            }
            let result = Box::pin(reattach(&pod, &container, false)).await;
            log(&pod, "look again for a monitor", result);
        }
    });
}

async fn reattach(pod: &Arc<Pod>, container: &Arc<Container>, first: bool) -> Result<()> {
    let services = &pod.services;
    let created = container.cell.get().phase == ContainerPhase::Created;
    let found = tokio::time::timeout(
        ANSWER,
        services
            .launcher
            .reattach(&container.id, &dir(services, &container.id)),
    )
    .await;
    match found {
        Ok(Ok(Reattached::Running(monitor))) => {
            let (pid, start_time) = monitor.init();
            container.set_monitor(Some(monitor.clone()));
            container
                .cell
                .change(|record| {
                    record.phase = ContainerPhase::Running;
                    if record.started_at == 0 {
                        record.started_at = clock::now_ns();
                    }
                    record.process = Some(Process {
                        pid: pid.unsigned_abs(),
                        start_time,
                        boot_id: services.boot_id.clone(),
                    });
                })
                .await?;
            watch(pod, container, monitor);
            Ok(())
        }
        Ok(Ok(Reattached::Exited(exit, monitor))) => {
            container.set_monitor(monitor);
            ended(pod, container, Ending::Exited(exit)).await
        }
        // Never started: whatever there was undoes itself.
        Ok(Ok(Reattached::Lost)) if created => {
            container::exit::give_back(pod, container).await;
            Ok(())
        }
        Ok(Ok(Reattached::Lost)) => ended(pod, container, Ending::Lost).await,
        Ok(Err(_)) | Err(_) if !first => Ok(()),
        Ok(Err(error)) => unknown(pod, container, &error.to_string()).await,
        Err(_) => unknown(pod, container, "its monitor does not answer").await,
    }
}

async fn ended(pod: &Arc<Pod>, container: &Arc<Container>, ending: Ending) -> Result<()> {
    pod.ask_container(&container.id, ContainerWork::Exited(ending))
        .await
}

async fn unknown(pod: &Arc<Pod>, container: &Arc<Container>, reason: &str) -> Result<()> {
    tracing::warn!(container = %container.id, reason, "UNKNOWN");
    look_again(pod, container);
    container
        .cell
        .change(|record| {
            record.phase = ContainerPhase::Unknown;
            record.exit.message = reason.to_owned();
        })
        .await?;
    Ok(())
}

/// A container whose pod's record is gone: force-removed (CRI-805).
async fn remove_orphan(services: Arc<Services>, record: ContainerRecord) {
    let id = record.id.clone();
    tracing::warn!(container = %id, pod = %record.pod, "no such sandbox: removed");
    let dir = dir(&services, &id);
    let result: Result<()> = async {
        services.launcher.cleanup(&dir).await.step("processes")?;
        container::cgroup(&services, &record.cgroup)?
            .remove(container::start::CGROUP_GONE)
            .await
            .step("cgroup")?;
        services
            .images
            .release_rootfs(&id)
            .await
            .step("root file system")?;
        services.specs.remove(&id).await?;
        let _ = tokio::fs::remove_dir_all(&dir).await;
        services.containers.delete(&id)?;
        Ok(())
    }
    .await;
    if let Err(error) = result {
        tracing::error!(container = %id, %error, "remove a container without a sandbox");
    }
}

/// Removes what no record owns.
async fn sweep(services: &Arc<Services>) {
    let mut pods = HashSet::new();
    let mut containers = HashSet::new();
    for pod in services.registry.pods() {
        containers.extend(
            pod.containers()
                .iter()
                .map(|container| container.id.clone()),
        );
        pods.insert(pod.id.clone());
    }
    if let Err(error) = services.network.gc(&pods).await {
        tracing::error!(%error, "give back the networks of sandboxes that are gone");
    }
    let state = &services.config.state;
    for id in children(&state.join("ns")).filter(|id| !pods.contains(id)) {
        log_sweep("namespaces", &id, services.unpin(&id));
    }
    for id in children(&state.join("pods")).filter(|id| !pods.contains(id)) {
        log_sweep("files", &id, Files::of(state, &id).remove());
    }
    for id in children(&state.join("containers")).filter(|id| !containers.contains(id)) {
        let dir = dir(services, &id);
        let result = services.launcher.cleanup(&dir).await.map(drop);
        log_sweep("processes", &id, result);
        log_sweep("directory", &id, fs::remove_dir_all(&dir));
    }
    for id in children(&services.config.root.join("roots")).filter(|id| !containers.contains(id)) {
        let result = services.images.release_rootfs(&id).await;
        log_sweep("root file system", &id, result);
    }
    for id in children(&services.config.root.join("volumes")).filter(|id| !containers.contains(id))
    {
        let result = container::remove_volumes(services, &id).await;
        log_sweep("volumes", &id, result);
    }
    for id in services.images.in_use().pods {
        if !pods.contains(&id) {
            let result = services.images.release_image_volumes(&id).await;
            log_sweep("image volumes", &id, result);
        }
    }
    for id in services.specs.ids().unwrap_or_default() {
        if !containers.contains(&id) {
            log_sweep("spec", &id, services.specs.remove(&id).await);
        }
    }
}

fn children(dir: &Path) -> impl Iterator<Item = String> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

fn log_sweep<E: std::fmt::Display>(what: &str, id: &str, result: std::result::Result<(), E>) {
    match result {
        Ok(()) => tracing::warn!(id, "{what} without a record: removed"),
        Err(error) => tracing::error!(id, %error, "{what} without a record"),
    }
}
