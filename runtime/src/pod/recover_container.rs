//! Recovery of a container's record: by its monitor, by the exit file that the monitor left, or
//! without either. The table is in `recover.rs`.

use std::{sync::Arc, time::Duration};

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    container_exit::{record, release, settle, watch},
    create_container,
    error::Result,
    op::{Asker, Look, Op},
    pods::Pods,
    record::ContainerPhase,
    resources,
    state::{Container, Pod},
};
use crate::{
    clock,
    monitor::{Ending, Reattached},
};

/// If a monitor does not answer in this time, its container is UNKNOWN (CRI-805).
const ANSWER: Duration = Duration::from_secs(10);
/// The same when it is looked for again. A stop waits for the look.
const ANSWER_AGAIN: Duration = Duration::from_secs(1);

/// `found` is held until the container's state is known.
///
/// # Errors
/// An exit could not be written to disk.
pub(super) async fn run(
    cx: &Arc<Pods>,
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    look: Look,
    found: TaskTrackerToken,
) -> Result<()> {
    let rebooted = pod.cell.get().boot_id != cx.node.boot_id;
    let ending = match container.cell.get().phase {
        ContainerPhase::Creating => {
            drop(found);
            create_container::undo(cx, pod, container).await;
            return Ok(());
        }
        // The exit was recorded, but plugins may not have been notified.
        ContainerPhase::Exited => {
            drop(found);
            return settle(cx, pod, container, Ok(())).await;
        }
        ContainerPhase::Running | ContainerPhase::Unknown if rebooted => Some(Ending::Lost),
        ContainerPhase::Created | ContainerPhase::Running | ContainerPhase::Unknown => {
            reattach(cx, pod, container, look).await
        }
    };
    if let Some(ending) = ending {
        let written = record(cx, pod, container, ending).await;
        drop(found);
        return settle(cx, pod, container, written).await;
    }
    drop(found);
    let record = container.cell.get();
    match record.phase {
        // Never started: the monitor has undone itself.
        ContainerPhase::Created => release(&cx.node, container).await,
        ContainerPhase::Running => {
            if record.evicted.is_some() {
                pod.stop_evicted(container);
            }
            // Not awaited: the kernel may be slow, and the container may end meanwhile.
            tokio::spawn(resources::resume(
                Arc::clone(&cx.node),
                Arc::clone(container),
            ));
        }
        _ => {}
    }
    Ok(())
}

/// Returns the end of a container that was started.
async fn reattach(
    cx: &Pods,
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    look: Look,
) -> Option<Ending> {
    let node = &cx.node;
    let was = container.cell.get();
    let dir = node.dirs.container(&container.id);
    let found = node.launcher.reattach(&container.id, &dir);
    let answer = match look {
        Look::First => ANSWER,
        Look::Again => ANSWER_AGAIN,
    };
    match tokio::time::timeout(answer, found).await {
        Ok(Ok(Reattached::Running(monitor))) => {
            container.set_monitor(Some(monitor.clone()));
            let process = Some(node.process(&monitor));
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
            None
        }
        Ok(Ok(Reattached::Exited(exit, monitor))) => {
            container.set_monitor(monitor);
            Some(Ending::Exited(exit))
        }
        Ok(Ok(Reattached::Lost)) if was.phase == ContainerPhase::Created => None,
        Ok(Ok(Reattached::Lost)) => Some(Ending::Lost),
        Ok(Err(_)) | Err(_) if look == Look::Again => None,
        Ok(Err(error)) => unknown(pod, container, &error.to_string()).await,
        Err(_) => unknown(pod, container, "its monitor does not answer").await,
    }
}

async fn unknown(pod: &Arc<Pod>, container: &Arc<Container>, reason: &str) -> Option<Ending> {
    tracing::warn!(container = %container.id, reason, "UNKNOWN");
    container
        .cell
        .note(|record| {
            record.phase = ContainerPhase::Unknown;
            record.exit.message = reason.to_owned();
        })
        .await;
    look_again(pod, container);
    None
}

/// Polls a monitor that did not answer, until it does or the container is removed.
fn look_again(pod: &Arc<Pod>, container: &Arc<Container>) {
    let (pod, container) = (Arc::clone(pod), Arc::clone(container));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(ANSWER).await;
            let waits = container.cell.get().phase == ContainerPhase::Unknown;
            if !waits || pod.container(&container.id).is_none() {
                return;
            }
            let look = Op::Recover(Look::Again);
            let looked = pod.ask_container(Asker::Runtime, &container.id, look);
            if let Err(error) = looked.await {
                tracing::error!(pod = %pod.id, container = %container.id, %error, "look again for its monitor");
            }
        }
    });
}
