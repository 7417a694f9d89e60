//! Recovery of a pod's record: by its namespaces and its pause process. The table is in
//! `recover.rs`.

use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    error::Result,
    notices::Change,
    pause::{self, is_exposed},
    pods::Pods,
    record::{Mark, PodPhase},
    sandbox_phases,
    state::Pod,
};

/// `found` is held until the pod's state is known.
///
/// # Errors
/// The record of a failed undo cannot be written.
pub(super) async fn run(cx: &Arc<Pods>, pod: &Arc<Pod>, found: TaskTrackerToken) -> Result<()> {
    let record = pod.cell.get();
    let rebooted = record.boot_id != cx.node.boot_id;
    if record.phase == PodPhase::Creating {
        // Not listed, so nobody asks for its state.
        drop(found);
        return undo(cx, pod).await;
    }
    if record.phase == PodPhase::Ready && (rebooted || !is_intact(cx, pod).await) {
        tracing::warn!(pod = %pod.id, rebooted, "the sandbox is gone: NOTREADY");
        pod.cell
            .note(|record| record.phase = PodPhase::NotReady)
            .await;
        cx.notices.became(pod, None, Change::NOT_READY);
    }
    if is_exposed(&pod.cell.get()) {
        tracing::warn!(
            pod = %pod.id,
            name = %pod.cell.get().name_key(),
            "created by an older version, whose pause process lets a container take over the node: remove this \
             sandbox and create it anew (SECURITY.md, Advisories)"
        );
    }
    Ok(())
}

async fn undo(cx: &Pods, pod: &Pod) -> Result<()> {
    let Err(error) = sandbox_phases::undo_all(cx, pod).await else {
        cx.registry.forget(&pod.cell.get());
        return Ok(());
    };
    tracing::error!(pod = %pod.id, %error, "a sandbox that was being made cannot be undone");
    pod.cell
        .record_fact(|record| {
            record.phase = PodPhase::NotReady;
            record.failed_step = Some(error.text);
            // The undo has sent both to plugins, if they got Run.
            record.hooks.stop = Mark::Done;
            record.hooks.remove = Mark::Done;
        })
        .await?;
    cx.notices.became(pod, None, Change::LEFT);
    Ok(())
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
