//! The end of a container's process: records it, and notifies plugins (C-10).
//!
//! ```text
//!  monitor ─► watch ─► queue ─► exited: record ─► event ─► release ─► send_stop_hook: exit_reported
//! ```
//! A removal, a failed start and recovery also call `send_stop_hook`; only the first call sends the
//! hook. StopContainer waits for `exit_reported`. The undo of a failed CreateContainer sends the
//! hook itself, because no process ended.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    dirs::remove_dir,
    error::Result,
    node::{CGROUP_GONE, Node},
    op::{Asker, Op},
    pods::Pods,
    record::{ContainerPhase, Eviction, Exit, Mark},
    resources, side_effects,
    state::{Container, Pod},
};
use crate::{
    clock, fault,
    monitor::{self, Ending, Monitor, MonitorError},
    store,
    trace::Action,
};

/// Between two attempts to report an exit, or to write it to disk.
const AGAIN: Duration = Duration::from_secs(2);

/// Reports the end of the container's process. Each container has one watcher, from its start or
/// from recovery to its end.
pub fn watch(pod: &Arc<Pod>, container: &Arc<Container>, monitor: Monitor) {
    let (pod, container) = (Arc::clone(pod), Arc::clone(container));
    tokio::spawn(async move {
        let ending = monitor.wait().await;
        drop(monitor);
        report(&pod, &container, ending).await;
    });
}

/// Reports an end to the driver until it is known or the container is gone. Every end that
/// somebody else than the driver finds goes this way.
pub async fn report(pod: &Pod, container: &Container, ending: Ending) {
    while pod.container(&container.id).is_some() {
        let exited = Op::Exited(ending);
        let reported = pod.ask_container(Asker::Runtime, &container.id, exited);
        if let Err(error) = reported.await {
            tracing::error!(pod = %pod.id, container = %container.id, %error, "its exit");
        }
        if container.cell.get().phase == ContainerPhase::Exited {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Retries until the disk takes the exit. False if the container is removed first.
pub async fn written_later(pod: &Pod, container: &Container) -> bool {
    loop {
        tokio::time::sleep(AGAIN).await;
        if pod.container(&container.id).is_none() {
            return false;
        }
        if container.cell.change(|_| {}).await.is_ok() {
            return true;
        }
    }
}

/// # Errors
/// When the exit could not be written to disk. It is recorded in memory nevertheless.
pub async fn exited(
    cx: &Arc<Pods>,
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    ending: Ending,
) -> Result<()> {
    let written = record(cx, pod, container, ending).await;
    settle(cx, pod, container, written).await
}

/// Records the exit.
///
/// # Errors
/// As [`exited`].
pub async fn record(
    cx: &Pods,
    pod: &Pod,
    container: &Container,
    ending: Ending,
) -> std::result::Result<(), store::Error> {
    let (mut exit, finished_at) = match ending {
        Ending::Exited(exit) => check(&exit),
        Ending::Lost => lost(&cx.node, container).await,
    };
    let mut message = String::new();
    if let Some(Eviction { plugin, reason }) = &container.cell.get().evicted {
        exit.message = format!("evicted by a plugin: {reason}");
        message = format!("evicted by {plugin}: {reason}");
    }
    let action = Action::Exited {
        code: exit.code,
        reason: exit.reason.clone(),
        message,
    };
    let written = container
        .cell
        .record_fact(|record| {
            record.phase = ContainerPhase::Exited;
            // The time of day may have been set back.
            record.finished_at = finished_at.max(record.started_at);
            record.exit = exit;
            if record.hooks.stop == Mark::None {
                record.hooks.stop = Mark::Begun;
            }
        })
        .await;
    cx.notices.became(pod, Some(container), action);
    written.map(drop)
}

/// Releases what is left of a container whose exit was recorded, and notifies plugins.
///
/// # Errors
/// That of the record.
pub async fn settle(
    cx: &Arc<Pods>,
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    written: std::result::Result<(), store::Error>,
) -> Result<()> {
    match &written {
        Ok(()) => release(&cx.node, container).await,
        Err(_) => release_later(cx, pod, container),
    }
    send_stop_hook(cx, pod, container).await;
    written?;
    Ok(())
}

/// C-10, once per container.
pub async fn send_stop_hook(cx: &Pods, pod: &Pod, container: &Container) {
    if container.cell.get().hooks.stop != Mark::Done {
        stop_container_hook(cx, pod, container).await;
        let notified = container
            .cell
            .record_fact(|record| record.hooks.stop = Mark::Done)
            .await;
        match notified {
            // The removal that waited for this hook may have deleted the record already.
            Ok(_) | Err(store::Error::Deleted { .. }) => {}
            Err(error) => {
                tracing::error!(container = %container.id, %error, "the StopContainer hook is not on record");
            }
        }
    }
    container.set_exit_reported();
}

/// Sends the hook and applies the updates of its answers.
pub async fn stop_container_hook(cx: &Pods, pod: &Pod, container: &Container) {
    let answer = cx.notices.hooks.stop_container(pod, container).await;
    let until = resources::deadline();
    side_effects::apply(cx, pod, container, &answer.others, until).await;
}

/// For an exit that a full disk refused. Meanwhile the monitor keeps it for the next daemon.
fn release_later(cx: &Arc<Pods>, pod: &Arc<Pod>, container: &Arc<Container>) {
    let (cx, pod, container) = (Arc::clone(cx), Arc::clone(pod), Arc::clone(container));
    tokio::spawn(async move {
        if written_later(&pod, &container).await {
            release(&cx.node, &container).await;
        }
    });
}

/// The monitor died without an exit file: kills the processes it left.
async fn lost(node: &Node, container: &Container) -> (Exit, i64) {
    let dir = node.dirs.container(&container.id);
    match node.launcher.cleanup(&dir).await {
        Ok(Some(exit)) => return check(&exit),
        Ok(None) => {}
        Err(error) => {
            tracing::error!(container = %container.id, %error, "cannot clean up after a lost monitor");
        }
    }
    let exit = Exit {
        code: 255,
        reason: "MonitorLost".into(),
        message: "the container's monitor was killed; the container was killed with it".into(),
    };
    (exit, clock::now_ns())
}

/// Releases monitor, processes, cgroup and directory. Failures are logged, and the removal of the
/// container tries again.
pub async fn release(node: &Node, container: &Container) {
    let dir = node.dirs.container(&container.id);
    let log = |what: &str, error: &dyn std::fmt::Display| {
        tracing::warn!(container = %container.id, %error, "{what}");
    };
    let deleted = match container.monitor() {
        Some(monitor) => delete(&monitor).await.map_err(|error| error.to_string()),
        None => Err("it was not there".to_owned()),
    };
    container.set_monitor(None);
    // If the monitor cannot clean up, another one does.
    if deleted.is_err()
        && let Err(error) = node.launcher.cleanup(&dir).await
    {
        container.unkillable.store(true, Ordering::Relaxed);
        log("processes may be left", &error);
    }
    let patience = if container.unkillable.load(Ordering::Relaxed) {
        Duration::ZERO
    } else {
        CGROUP_GONE
    };
    if let Err(error) = fault::pass("container.exit.cgroup").await {
        return log("the cgroup is left", &error);
    }
    match node.cgroup(&container.cell.get().cgroup) {
        Ok(group) => {
            if let Err(error) = group.remove(patience).await {
                log("the cgroup is left", &error);
            }
        }
        Err(error) => log("no cgroup to remove", &error),
    }
    node.unmount_root(&container.id);
    if let Err(error) = remove_dir(&dir).await {
        log("its directory is left", &error);
    }
}

const OOM: &str =
    "a process was killed: the memory limit of the container, or of a cgroup above it, was reached";

/// CRI-143, CRI-144.
fn check(exit: &monitor::Exit) -> (Exit, i64) {
    let reason = match exit.code {
        137 if exit.oom_killed => "OOMKilled",
        0 => "Completed",
        _ => "Error",
    };
    let checked = Exit {
        code: exit.code,
        reason: reason.into(),
        // Also for a killed child, which no exit code shows.
        message: if exit.oom_killed { OOM } else { "" }.to_owned(),
    };
    (checked, i64::try_from(exit.finished_at).unwrap_or(i64::MAX))
}

/// Ends the remaining processes and the monitor. The monitor kills and removes everything it made
/// before it answers.
async fn delete(monitor: &Monitor) -> std::result::Result<(), MonitorError> {
    if monitor.ending().is_none() {
        monitor.kill(libc::SIGKILL, true).await?;
        let _ = tokio::time::timeout(CGROUP_GONE, monitor.wait()).await;
    }
    monitor.delete().await
}
