//! StopPodSandbox (CRI-114, NRI-1130 to NRI-1134).
//!
//! ```text
//!  containers ─► hook C-02 ─► pause ─► network ─► image volumes ─► namespaces, files ─► cgroup
//! ```
//!
//! Every step is idempotent and its result is recorded, so that a second call, or a restart,
//! resumes at the failed step; the hook is not sent twice.

use std::{sync::Arc, time::Duration};

use super::{
    error::{AtStep as _, Error, Result},
    notices::Change,
    op::{Asker, Op},
    pause,
    pods::Pods,
    record::{ContainerPhase, Mark, Namespaces, PodPhase},
    state::Pod,
};
use crate::{fault, trace::Action};

/// # Errors
/// The step that failed; the sandbox stays NOTREADY and a second call resumes there. Or it is
/// stopped, and a plugin whose failures must fail the request did not answer.
pub async fn run(cx: &Pods, pod: &Arc<Pod>) -> Result<()> {
    let what = format!("sandbox {}: stop", pod.id);
    let cell = &pod.cell;
    refuse_held(cx, pod)?;
    let mut notified = Ok(());
    let stopped = stop_containers(pod).await;
    pod.skips
        .pass("containers", stopped)
        .map_err(|error| error.at(&what))?;
    if cell.get().hooks.stop != Mark::Done {
        fault::pass("pod.stop.hook").await.step(&what)?;
        if cx.notices.hooks.active() {
            cell.note(|record| record.hooks.stop = Mark::Begun).await;
        }
        notified = cx.notices.hooks.stop_pod_sandbox(pod).await;
        let was_ready = cell.get().phase == PodPhase::Ready;
        cell.note(|record| {
            record.hooks.stop = Mark::Done;
            record.phase = PodPhase::NotReady;
        })
        .await;
        if was_ready {
            cx.notices.became(pod, None, Change::NOT_READY);
        }
    }
    let result = release(cx, pod).await;
    cell.note(|record| {
        record.phase = PodPhase::NotReady;
        record.failed_step = result.as_ref().err().map(|error| error.text.clone());
        if result.is_ok() {
            record.namespaces = Namespaces::default();
            record.network_begun = false;
            record.pause = None;
        }
    })
    .await;
    result.map_err(|error| error.at(&what))?;
    cx.notices.became(pod, None, Action::Stopped);
    notified.map_err(|error| error.at(&what))
}

/// The network and namespaces of a running held container must stay.
fn refuse_held(cx: &Pods, pod: &Pod) -> Result<()> {
    match cx.registry.held().containers_of(&pod.id).first() {
        Some(held) => Err(held.refusal("container")),
        None => Ok(()),
    }
}

/// Releases the sandbox's resources in order; stops at the first failing step.
async fn release(cx: &Pods, pod: &Pod) -> Result<()> {
    let (skips, node, record) = (&pod.skips, &cx.node, pod.cell.get());
    fault::pass("pod.stop.pause").await.step("pause")?;
    skips.pass("pause", pause::stop(node, &pod.id).await)?;
    fault::pass("pod.stop.network").await.step("network")?;
    match node.release_network(&record).await {
        Ok(true) => cx.notices.became(pod, None, Action::NetworkGone),
        Ok(false) => {}
        Err(error) => {
            skips.pass("network", Err(error))?;
            let abandoned = node.machine.abandon(&pod.id).await;
            skips.pass("network", abandoned.step("abandon"))?;
        }
    }
    let volumes = node.images.release_image_volumes(&pod.id).await;
    skips.pass("image volumes", volumes.step("image volumes"))?;
    fault::pass("pod.stop.namespaces")
        .await
        .step("namespaces")?;
    skips.pass("namespaces", node.release_namespaces(&pod.id).await)?;
    fault::pass("pod.stop.cgroup").await.step("cgroup")?;
    skips.pass("cgroup", node.release_cgroup(&record).await)
}

/// All at once and without grace, which kubelet gave before (CRI-114).
async fn stop_containers(pod: &Arc<Pod>) -> Result<()> {
    let mut stops = tokio::task::JoinSet::new();
    for container in pod.containers() {
        let (pod, id) = (Arc::clone(pod), container.id.clone());
        stops.spawn(async move {
            let grace = Duration::ZERO;
            pod.ask_container(Asker::Runtime, &id, Op::Stop { grace })
                .await?;
            // Plugins may still be receiving an exit from before this stop.
            if let Some(container) = pod.container(&id)
                && container.cell.get().phase == ContainerPhase::Exited
            {
                container.wait_exit_reported().await;
            }
            Ok(())
        });
    }
    let mut result = Ok(());
    while let Some(end) = stops.join_next().await {
        let end = end.unwrap_or_else(|error| Err(Error::failed(error.to_string())));
        result = result.and(end);
    }
    result
}
