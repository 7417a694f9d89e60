//! StopPodSandbox and RemovePodSandbox (CRI-114, CRI-115, NRI-1130 to NRI-1144).
//!
//! ```text
//!  stop    containers ─► hook StopPodSandbox ─► pause ─► network ─► namespaces, files ─► cgroup
//!  remove  stop ─► containers removed ─► hook RemovePodSandbox ─► record, name
//! ```
//!
//! Every step is idempotent and its result is on record, so that a second call, or a restart,
//! resumes where the last one failed; the hook is not sent twice.

use std::{sync::Arc, time::Duration};

use super::{
    Pod,
    container::{cgroup, start::CGROUP_GONE},
    driver::{ContainerWork, Message},
    error::{Error, Result, Step as _},
    events::Change,
    files::Files,
    pause,
    record::{Mark, Namespaces, PodPhase},
};
use crate::{fault, pod::journal::Step};

/// # Errors
/// The step that failed; the sandbox stays NOTREADY and a second call resumes there.
pub async fn stop(pod: Arc<Pod>) -> Result<()> {
    let what = format!("sandbox {}: stop", pod.id);
    stop_containers(&pod)
        .await
        .map_err(|error| error.at(&what))?;
    if pod.cell.get().hooks.stop != Mark::Done {
        fault::pass("pod.stop.hook").await.step(&what)?;
        if pod.services.hooks.active() {
            pod.cell
                .change(|record| record.hooks.stop = Mark::Begun)
                .await?;
        }
        pod.services.hooks.stop_pod(&pod).await;
        let was_ready = pod.cell.get().phase == PodPhase::Ready;
        pod.cell
            .change(|record| {
                record.hooks.stop = Mark::Done;
                record.phase = PodPhase::NotReady;
            })
            .await?;
        if was_ready {
            pod.services.events.tell(&pod, None, Change::Stopped);
        }
    }
    let result = release(&pod).await;
    pod.cell
        .change(|record| {
            record.phase = PodPhase::NotReady;
            record.failed_step = result.as_ref().err().map(|error| error.text.clone());
            if result.is_ok() {
                record.namespaces = Namespaces::default();
                record.network_begun = false;
                record.network = None;
                record.pause = None;
            }
        })
        .await?;
    result.map_err(|error| error.at(&what))?;
    pod.services.journal.step(&pod, None, Step::Stopped);
    Ok(())
}

/// All at once; no grace, kubelet gave it before (CRI-114).
async fn stop_containers(pod: &Arc<Pod>) -> Result<()> {
    let mut stops = tokio::task::JoinSet::new();
    for container in pod.containers() {
        let (pod, id) = (Arc::clone(pod), container.id.clone());
        stops.spawn(async move {
            let grace = Duration::ZERO;
            pod.ask_container(&id, ContainerWork::Stop { grace })
                .await?;
            // An exit that was noticed before this stop may still be being told to plugins.
            if let Some(container) = pod.container(&id)
                && container.cell.get().phase == super::record::ContainerPhase::Exited
            {
                container.wait_ended().await;
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

/// Gives back what the sandbox holds, in order; stops at the first step that fails.
async fn release(pod: &Arc<Pod>) -> Result<()> {
    fault::pass("pod.stop.pause").await.step("pause")?;
    pause::stop(pod).await?;
    fault::pass("pod.stop.network").await.step("network")?;
    release_network(pod).await?;
    pod.services
        .images
        .release_image_volumes(&pod.id)
        .await
        .step("image volumes")?;
    fault::pass("pod.stop.namespaces")
        .await
        .step("namespaces")?;
    release_namespaces(pod).await?;
    fault::pass("pod.stop.cgroup").await.step("cgroup")?;
    release_cgroup(pod).await
}

/// Idempotent; nothing to do where the network was never asked.
///
/// # Errors
/// What the network layer says; kubelet retries (CRI-114).
pub async fn release_network(pod: &Arc<Pod>) -> Result<()> {
    let record = pod.cell.get();
    if !record.network_begun {
        return Ok(());
    }
    pod.services.network.detach(&pod.id).await.step("network")?;
    pod.services.journal.step(pod, None, Step::NetworkGone);
    Ok(())
}

/// Namespaces and the pod's files. Idempotent.
///
/// # Errors
/// What is left.
pub async fn release_namespaces(pod: &Arc<Pod>) -> Result<()> {
    let (services, id) = (Arc::clone(&pod.services), pod.id.clone());
    crate::store::blocking(move || {
        services.unpin(&id).step("namespaces")?;
        Files::of(&services.config.state, &id).remove()
    })
    .await
}

/// The sandbox's leaf, and parents that were made for it, once they are empty. Idempotent.
///
/// # Errors
/// What is left.
pub async fn release_cgroup(pod: &Arc<Pod>) -> Result<()> {
    cgroup(&pod.services, &pod.cell.get().cgroup_leaf())?
        .remove(CGROUP_GONE)
        .await
        .step("cgroup")
}

/// # Errors
/// The step that failed; a second call resumes there.
pub async fn remove(pod: Arc<Pod>) -> Result<()> {
    let what = format!("sandbox {}: remove", pod.id);
    pod.ask(Message::StopPod).await?;
    for container in pod.containers() {
        pod.ask_container(&container.id, ContainerWork::Remove)
            .await
            .map_err(|error| error.at(&what))?;
    }
    if pod.cell.get().hooks.remove != Mark::Done {
        fault::pass("pod.remove.hook").await.step(&what)?;
        if pod.services.hooks.active() {
            pod.cell
                .change(|record| record.hooks.remove = Mark::Begun)
                .await?;
        }
        pod.services.hooks.remove_pod(&pod).await;
    }
    fault::pass("pod.remove.record").await.step(&what)?;
    pod.services.journal.step(&pod, None, Step::SandboxRemoved);
    pod.cell.delete().await?;
    pod.services.registry.forget(&pod.cell.get());
    pod.services.events.tell(&pod, None, Change::Deleted);
    Ok(())
}
