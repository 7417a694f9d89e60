//! A container's process has ended: record it, tell plugins once, give back what it used.

use std::sync::Arc;

use super::{
    super::{
        Container, Pod,
        error::Result,
        events::Change,
        record::{ContainerPhase, Exit, Mark},
    },
    cgroup, dir, rootfs_path,
    start::CGROUP_GONE,
    unmount_root,
};
use crate::{
    clock,
    monitor::{self, Ending, Monitor, MonitorError},
    pod::journal::Step,
};

/// From the watcher of the monitor, through the pod's queue.
///
/// # Errors
/// When the exit could not be written to disk; it holds in memory all the same.
pub async fn exited(pod: &Arc<Pod>, container: &Arc<Container>, ending: Ending) -> Result<()> {
    let (mut exit, finished_at) = match ending {
        Ending::Exited(exit) => judge(&exit),
        Ending::Lost => lost(pod, container).await,
    };
    if let Some(reason) = container.evicted.get() {
        exit.message = format!("evicted by a plugin: {reason}");
    }
    pod.services.journal.step(
        pod,
        Some(container),
        Step::Exited {
            code: exit.code,
            reason: exit.reason.clone(),
        },
    );
    let written = container
        .cell
        .record_fact(|record| {
            record.phase = ContainerPhase::Exited;
            record.finished_at = finished_at;
            record.exit = exit;
            if record.hooks.stop == Mark::None {
                record.hooks.stop = Mark::Begun;
            }
        })
        .await;
    let events = &pod.services.events;
    events.tell(pod, Some(container), Change::Stopped);
    give_back(pod, container).await;
    tell(pod, container).await;
    written?;
    Ok(())
}

/// CRI-143, CRI-144.
fn judge(exit: &monitor::Exit) -> (Exit, i64) {
    let reason = match exit.code {
        137 if exit.oom_killed => "OOMKilled",
        0 => "Completed",
        _ => "Error",
    };
    let judged = Exit {
        code: exit.code,
        reason: reason.into(),
        message: String::new(),
    };
    (judged, i64::try_from(exit.finished_at).unwrap_or(i64::MAX))
}

/// The monitor died without leaving an exit: what it kept is killed.
async fn lost(pod: &Pod, container: &Container) -> (Exit, i64) {
    let dir = dir(&pod.services, &container.id);
    match pod.services.launcher.cleanup(&dir).await {
        Ok(Some(exit)) => return judge(&exit),
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

/// The StopContainer hook, once in a container's life.
pub async fn tell(pod: &Arc<Pod>, container: &Arc<Container>) {
    if container.cell.get().hooks.stop != Mark::Done {
        pod.services.hooks.stop_container(pod, container).await;
        let told = container
            .cell
            .record_fact(|record| record.hooks.stop = Mark::Done)
            .await;
        if let Err(error) = told {
            tracing::error!(container = %container.id, %error, "the StopContainer hook is not on record");
        }
    }
    container.set_ended();
}

/// Monitor, processes, cgroup and directory. What cannot be given back is logged and tried
/// again when the container is removed.
pub async fn give_back(pod: &Pod, container: &Container) {
    let services = &pod.services;
    let dir = dir(services, &container.id);
    let log = |what: &str, error: &dyn std::fmt::Display| {
        tracing::warn!(container = %container.id, %error, "{what}");
    };
    let deleted = match container.monitor() {
        Some(monitor) => delete(&monitor).await.map_err(|error| error.to_string()),
        None => Err("it was not there".to_owned()),
    };
    container.set_monitor(None);
    // Where the monitor itself could not clean up, another one does it for it.
    if deleted.is_err()
        && let Err(error) = services.launcher.cleanup(&dir).await
    {
        log("processes may be left", &error);
    }
    match cgroup(services, &container.cell.get().cgroup) {
        Ok(group) => {
            if let Err(error) = group.remove(CGROUP_GONE).await {
                log("the cgroup is left", &error);
            }
        }
        Err(error) => log("no cgroup to remove", &error),
    }
    unmount_root(&rootfs_path(services, &container.id));
    if let Err(error) = tokio::fs::remove_dir_all(&dir).await
        && error.kind() != std::io::ErrorKind::NotFound
    {
        log("its directory is left", &error);
    }
}

/// Ends what still runs, and the monitor with it; the monitor kills and removes all that it
/// made before it answers.
async fn delete(monitor: &Monitor) -> std::result::Result<(), MonitorError> {
    if monitor.ending().is_none() {
        monitor.kill(libc::SIGKILL, true).await?;
        let _ = tokio::time::timeout(CGROUP_GONE, monitor.wait()).await;
    }
    monitor.delete().await
}
