//! The pause process: PID 1 of a pod that shares its PID namespace (CRI-201). Like every container
//! it has a monitor, a create helper and a leaf cgroup; its root has one static program, and no
//! image.
//!
//! Containers of the pod can inspect it through `/proc/1`. So its root is empty and has no procfs.
//! The procfs of the namespace is mounted read-only beside the pod's files, and containers get
//! copies of that mount.

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{
    dirs::remove_dir,
    error::{AtStep as _, Result},
    message,
    node::{CGROUP_GONE, Node},
    notices::Change,
    pods::Pods,
    record::{Mark, PodPhase, PodRecord, Process},
    state::Pod,
};
use crate::{
    blocking::blocking,
    host::facts::View,
    monitor::{LaunchSpec, Monitor, Reattached},
    oci::{self, PauseInputs},
    trace::Action,
};

/// Interval of checks of an unfinished sandbox whose pause process has ended already.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// # Errors
/// The step that failed; [`stop`] undoes what was done.
pub async fn start(cx: &Arc<Pods>, pod: &Arc<Pod>) -> Result<()> {
    let (node, record) = (&cx.node, pod.cell.get());
    let sandbox = message::sandbox(node, pod);
    let linux = record.linux();
    let spec = oci::pause_spec(&PauseInputs {
        sandbox: &sandbox,
        context: linux.security_context.as_ref(),
        host: &node.host,
        view: &View,
        policy: message::policy(node, pod),
        rootfs: &node.pause_root,
        args: &["/pause".to_owned()],
    })?;
    let group = node.cgroup(&record.cgroup_leaf())?;
    let resources = oci::limits::current(&spec).cloned();
    group
        .set_up(&pod.id, resources)
        .await
        .step("pause: cgroup")?;
    let monitor = node
        .launcher
        .launch(LaunchSpec {
            id: format!("pause-{}", pod.id),
            dir: node.dirs.pause(&pod.id),
            config: serde_json::to_vec(&spec).step("pause: encode the spec")?,
            cgroups: node.joined_by_monitor(&group),
            tty: false,
            stdin: false,
            stdin_once: false,
            log_path: None,
            max_log_line: 0,
            join: None,
        })
        .await
        .step("pause")?;
    monitor.start().await.step("pause")?;
    let process = node.process(&monitor);
    let pid = process.pid;
    let procfs = take_procfs(node, &process, &pod.id).await?;
    pod.cell
        .change(|record| {
            record.pause = Some(process);
            record.namespaces.procfs = Some(procfs);
        })
        .await?;
    cx.notices.became(pod, None, Action::Paused { pid });
    watch(cx, pod, monitor);
    Ok(())
}

/// Whether the recorded pause process is alive and unchanged; starts to watch it.
///
/// # Errors
/// When its monitor cannot be asked.
pub async fn alive(cx: &Arc<Pods>, pod: &Arc<Pod>) -> Result<bool> {
    let Reattached::Running(monitor) = reattach(&cx.node, &pod.id).await? else {
        return Ok(false);
    };
    watch(cx, pod, monitor);
    Ok(true)
}

async fn reattach(node: &Node, pod: &str) -> Result<Reattached> {
    let (id, dir) = (format!("pause-{pod}"), node.dirs.pause(pod));
    let found = node.launcher.reattach(&id, &dir).await;
    found.step("pause")
}

/// A sandbox whose pause process has ended becomes NOTREADY: no process can join its PID namespace
/// any more, and the kernel has killed all processes in it. The client is expected to stop the
/// sandbox and to make another.
fn watch(cx: &Arc<Pods>, pod: &Arc<Pod>, monitor: Monitor) {
    let (cx, pod) = (Arc::clone(cx), Arc::clone(pod));
    tokio::spawn(async move {
        monitor.wait().await;
        drop(monitor);
        // Its record shows when RunPodSandbox has ended, with either result.
        while pod.cell.get().phase == PodPhase::Creating {
            if cx.registry.any(&pod.id).is_none() {
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        if pod.cell.get().phase != PodPhase::Ready || pod.cell.get().hooks.stop != Mark::None {
            return; // It was stopped.
        }
        tracing::warn!(pod = %pod.id, "the pause process has ended: NOTREADY");
        let written = pod
            .cell
            .record_fact(|record| record.phase = PodPhase::NotReady)
            .await;
        if let Err(error) = written {
            tracing::error!(pod = %pod.id, %error, "the end of the pause process is not on record");
        }
        cx.notices.became(&pod, None, Change::NOT_READY);
    });
}

/// Kills the process and releases its resources. Idempotent; does nothing if none exists.
///
/// # Errors
/// The first resource that could not be released.
#[expect(clippy::disallowed_methods, reason = "in blocking()")]
pub async fn stop(node: &Node, pod: &str) -> Result<()> {
    let dir = node.dirs.pause(pod);
    let there = dir.clone();
    if !blocking(move || there.exists()).await {
        return Ok(());
    }
    if let Ok(Reattached::Running(monitor)) = reattach(node, pod).await {
        let killed = monitor.kill(libc::SIGKILL, true).await;
        let waited = tokio::time::timeout(CGROUP_GONE, monitor.wait());
        if killed.is_ok() && waited.await.is_ok() {
            monitor.delete().await.step("pause")?;
        }
    }
    let cleaned = node.launcher.cleanup(&dir).await;
    cleaned.step("pause")?;
    let removed = remove_dir(&dir).await;
    removed.map_err(|error| error.at("pause"))
}

/// Whether the pod's pause process, of an earlier version, has capabilities and a writable procfs,
/// which a container that sees it can use (SECURITY.md, *Advisories*).
pub fn is_exposed(record: &PodRecord) -> bool {
    record.phase == PodPhase::Ready && record.pause.is_some() && record.namespaces.procfs.is_none()
}

/// Unmounts everything in a running pause process, and keeps its procfs with the pod's files.
async fn take_procfs(node: &Node, process: &Process, pod: &str) -> Result<PathBuf> {
    let files = node.dirs.files(pod);
    let (machine, at) = (Arc::clone(&node.machine), files.procfs.clone());
    let (pid, start_time) = (process.pid.cast_signed(), process.start_time);
    let pin = move || machine.pin_procfs(pid, start_time, &files.dir, &files.procfs);
    let taken = blocking(pin).await;
    taken.step("pause: take its mounts")?;
    Ok(at)
}
