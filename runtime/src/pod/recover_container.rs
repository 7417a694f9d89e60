//! Recovery of a container's record: by its monitor, by the exit file that the monitor left, or
//! without either. The table is in `recover.rs`.

use std::{sync::Arc, time::Duration};

use super::{
    container_exit::{release, send_stop_hook, watch},
    create_container,
    error::Result,
    op::{Asker, Op},
    pods::Pods,
    record::{ContainerPhase, Mark},
    state::{Container, Pod},
};
use crate::{
    clock,
    monitor::{Ending, Reattached},
};

/// If a monitor does not answer in this time, its container is UNKNOWN (CRI-805).
const ANSWER: Duration = Duration::from_secs(10);

/// Recovers one container of a pod whose driver runs.
///
/// # Errors
/// An operation that the driver ran failed.
pub(super) async fn recover_container(
    cx: &Arc<Pods>,
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    rebooted: bool,
) -> Result<()> {
    match container.cell.get().phase {
        ContainerPhase::Creating => {
            create_container::undo(cx, pod, container).await;
            return Ok(());
        }
        ContainerPhase::Running | ContainerPhase::Unknown if rebooted => {
            ended(pod, container, Ending::Lost).await?;
        }
        ContainerPhase::Created | ContainerPhase::Running | ContainerPhase::Unknown => {
            reattach(cx, pod, container, true).await?;
        }
        // The exit was recorded, but plugins may not have been notified.
        ContainerPhase::Exited => {
            release(&cx.node, container).await;
            send_stop_hook(cx, pod, container).await;
        }
    }
    if container.cell.get().hooks.remove == Mark::Begun {
        pod.ask_container(Asker::Runtime, &container.id, Op::Remove)
            .await?;
    }
    Ok(())
}

async fn reattach(
    cx: &Arc<Pods>,
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    first: bool,
) -> Result<()> {
    let node = &cx.node;
    let created = container.cell.get().phase == ContainerPhase::Created;
    let dir = node.dirs.container(&container.id);
    let found = node.launcher.reattach(&container.id, &dir);
    match tokio::time::timeout(ANSWER, found).await {
        Ok(Ok(Reattached::Running(monitor))) => {
            container.set_monitor(Some(monitor.clone()));
            let process = Some(node.process(&monitor));
            let was = container.cell.get();
            // Most records need no change: a restart writes nothing for them.
            if was.phase != ContainerPhase::Running || was.process != process {
                // Watched even if a full disk refuses the record, so that it can be stopped.
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
        // Never started: the monitor undoes itself.
        Ok(Ok(Reattached::Lost)) if created => {
            release(&cx.node, container).await;
            Ok(())
        }
        Ok(Ok(Reattached::Lost)) => ended(pod, container, Ending::Lost).await,
        Ok(Err(_)) | Err(_) if !first => Ok(()),
        Ok(Err(error)) => {
            unknown(cx, pod, container, &error.to_string()).await;
            Ok(())
        }
        Err(_) => {
            let why = "its monitor does not answer";
            unknown(cx, pod, container, why).await;
            Ok(())
        }
    }
}

async fn unknown(cx: &Arc<Pods>, pod: &Arc<Pod>, container: &Arc<Container>, reason: &str) {
    tracing::warn!(container = %container.id, reason, "UNKNOWN");
    look_again(cx, pod, container);
    container
        .cell
        .note(|record| {
            record.phase = ContainerPhase::Unknown;
            record.exit.message = reason.to_owned();
        })
        .await;
}

/// Polls a monitor that did not answer, until it does or the container is removed.
fn look_again(cx: &Arc<Pods>, pod: &Arc<Pod>, container: &Arc<Container>) {
    let (cx, pod, container) = (Arc::clone(cx), Arc::clone(pod), Arc::clone(container));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(ANSWER).await;
            let waits = container.cell.get().phase == ContainerPhase::Unknown;
            if !waits || pod.container(&container.id).is_none() {
                return;
            }
            let result = Box::pin(reattach(&cx, &pod, &container, false)).await;
            log_failure(&pod, "look again for a monitor", result);
        }
    });
}

async fn ended(pod: &Arc<Pod>, container: &Arc<Container>, ending: Ending) -> Result<()> {
    let exited = Op::Exited(ending);
    pod.ask_container(Asker::Runtime, &container.id, exited)
        .await
        .map(drop)
}

/// Logs a failed step; recovery goes on.
pub(super) fn log_failure<T, E: std::fmt::Display>(
    pod: &Pod,
    step: &str,
    result: std::result::Result<T, E>,
) {
    if let Err(error) = result {
        tracing::error!(pod = %pod.id, step, %error, "a step of recovery failed");
    }
}
