//! What a restart makes of a container's record: its monitor is found again, or what it left, or nothing. The table is in
//! `recover.rs`.

use std::{sync::Arc, time::Duration};

use super::{
    container_exit::watch,
    error::Result,
    record::{ContainerPhase, Mark},
    request::ContainerWork,
    state::{Container, Pod},
    steps::Steps,
};
use crate::{
    clock,
    monitor::{Ending, Reattached},
};

/// A monitor that does not answer by then leaves its container UNKNOWN (CRI-805).
const ANSWER: Duration = Duration::from_secs(10);

/// What a restart makes of one container of a pod; the pod's driver runs.
///
/// # Errors
/// What is asked of the driver failed.
pub(super) async fn recover_container(
    steps: &Arc<Steps>,
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    rebooted: bool,
) -> Result<()> {
    let exit = &steps.container_exit;
    match container.cell.get().phase {
        ContainerPhase::Creating => {
            steps.create_container.undo(pod, container).await;
            pod.forget(&container.id);
            return Ok(());
        }
        ContainerPhase::Running | ContainerPhase::Unknown if rebooted => {
            ended(pod, container, Ending::Lost).await?;
        }
        ContainerPhase::Created | ContainerPhase::Running | ContainerPhase::Unknown => {
            reattach(steps, pod, container, true).await?;
        }
        // The exit was recorded, plugins may not have been told.
        ContainerPhase::Exited => {
            exit.give_back(container).await;
            exit.send_stop_hook(pod, container).await;
        }
    }
    if container.cell.get().hooks.remove == Mark::Begun {
        pod.ask_container(&container.id, ContainerWork::Remove)
            .await?;
    }
    Ok(())
}

async fn reattach(
    steps: &Arc<Steps>,
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    first: bool,
) -> Result<()> {
    let exit = &steps.container_exit;
    let processes = &exit.processes;
    let created = container.cell.get().phase == ContainerPhase::Created;
    let dir = processes.dirs.container(&container.id);
    let found = processes.launcher.reattach(&container.id, &dir);
    match tokio::time::timeout(ANSWER, found).await {
        Ok(Ok(Reattached::Running(monitor))) => {
            container.set_monitor(Some(monitor.clone()));
            let process = Some(processes.process(&monitor));
            let was = container.cell.get();
            // Most are on record as they are: a restart writes nothing for them.
            if was.phase != ContainerPhase::Running || was.process != process {
                // It runs, whether or not a full disk takes that down: who does not watch it can never stop it.
                container
                    .cell
                    .note(|record| {
                        record.phase = ContainerPhase::Running;
                        if record.started_at == 0 {
                            record.started_at = clock::now_ns();
                        }
                        record.process = process;
                    })
                    .await;
            }
            watch(pod, container, monitor);
            Ok(())
        }
        Ok(Ok(Reattached::Exited(exit, monitor))) => {
            container.set_monitor(monitor);
            ended(pod, container, Ending::Exited(exit)).await
        }
        // Never started: whatever there was undoes itself.
        Ok(Ok(Reattached::Lost)) if created => {
            exit.give_back(container).await;
            Ok(())
        }
        Ok(Ok(Reattached::Lost)) => ended(pod, container, Ending::Lost).await,
        Ok(Err(_)) | Err(_) if !first => Ok(()),
        Ok(Err(error)) => {
            unknown(steps, pod, container, &error.to_string()).await;
            Ok(())
        }
        Err(_) => {
            let why = "its monitor does not answer";
            unknown(steps, pod, container, why).await;
            Ok(())
        }
    }
}

async fn unknown(steps: &Arc<Steps>, pod: &Arc<Pod>, container: &Arc<Container>, reason: &str) {
    tracing::warn!(container = %container.id, reason, "UNKNOWN");
    look_again(steps, pod, container);
    container
        .cell
        .note(|record| {
            record.phase = ContainerPhase::Unknown;
            record.exit.message = reason.to_owned();
        })
        .await;
}

/// Looks again for a monitor that did not answer, until it does or the container is gone.
fn look_again(steps: &Arc<Steps>, pod: &Arc<Pod>, container: &Arc<Container>) {
    let (steps, pod, container) = (Arc::clone(steps), Arc::clone(pod), Arc::clone(container));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(ANSWER).await;
            let waits = container.cell.get().phase == ContainerPhase::Unknown;
            if !waits || pod.container(&container.id).is_none() {
                return;
            }
            let result = Box::pin(reattach(&steps, &pod, &container, false)).await;
            log_failure(&pod, "look again for a monitor", result);
        }
    });
}

async fn ended(pod: &Arc<Pod>, container: &Arc<Container>, ending: Ending) -> Result<()> {
    pod.ask_container(&container.id, ContainerWork::Exited(ending))
        .await
}

/// A step that failed: recovery goes on.
pub(super) fn log_failure<E: std::fmt::Display>(
    pod: &Pod,
    step: &str,
    result: std::result::Result<(), E>,
) {
    if let Err(error) = result {
        tracing::error!(pod = %pod.id, step, %error, "a step of recovery failed");
    }
}
