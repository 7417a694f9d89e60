//! StopPodSandbox (CRI-114, NRI-1130 to NRI-1134).
//!
//! ```text
//!  containers ─► hook StopPodSandbox ─► pause ─► network ─► image volumes ─► namespaces, files ─► cgroup
//! ```
//!
//! Every step is idempotent and its result is on record, so that a second call, or a restart,
//! resumes where the last one failed; the hook is not sent twice.

use std::{sync::Arc, time::Duration};

use super::{
    error::{AtStep as _, Error, Result},
    event_log::did,
    events::{EventKind, Events},
    hooks::Hooks,
    pause::Pauses,
    record::{ContainerPhase, Mark, Namespaces, PodPhase},
    registry::Registry,
    request::ContainerWork,
    sandbox::Sandboxes,
    state::Pod,
};
use crate::{
    fault,
    trace::{Action, EventLog},
};

pub struct StopPodSandbox {
    pub registry: Arc<Registry>,
    pub sandboxes: Arc<Sandboxes>,
    pub pauses: Arc<Pauses>,
    pub hooks: Arc<Hooks>,
    pub events: Events,
    pub log: EventLog,
}

impl StopPodSandbox {
    /// # Errors
    /// The step that failed; the sandbox stays NOTREADY and a second call resumes there. Or it is stopped,
    /// and a plugin that wants its failures to fail the request did not answer.
    pub async fn run(&self, pod: &Arc<Pod>) -> Result<()> {
        let what = format!("sandbox {}: stop", pod.id);
        let cell = &pod.cell;
        self.refuse_held(pod)?;
        let mut told = Ok(());
        let stopped = stop_containers(pod).await;
        pod.skips
            .pass("containers", stopped)
            .map_err(|error| error.at(&what))?;
        if cell.get().hooks.stop != Mark::Done {
            fault::pass("pod.stop.hook").await.step(&what)?;
            if self.hooks.active() {
                cell.note(|record| record.hooks.stop = Mark::Begun).await;
            }
            told = self.hooks.stop_pod_sandbox(pod).await;
            let was_ready = cell.get().phase == PodPhase::Ready;
            cell.note(|record| {
                record.hooks.stop = Mark::Done;
                record.phase = PodPhase::NotReady;
            })
            .await;
            if was_ready {
                self.events.tell(pod, None, EventKind::Stopped);
            }
        }
        let result = self.release(pod).await;
        cell.note(|record| {
            record.phase = PodPhase::NotReady;
            record.failed_step = result.as_ref().err().map(|error| error.text.clone());
            if result.is_ok() {
                record.namespaces = Namespaces::default();
                record.network_begun = false;
                record.network = None;
                record.pause = None;
            }
        })
        .await;
        result.map_err(|error| error.at(&what))?;
        did(&self.log, pod, None, Action::Stopped);
        told.map_err(|error| error.at(&what))
    }

    /// What runs of this pod and cannot be served is not taken its network and namespaces from under.
    fn refuse_held(&self, pod: &Pod) -> Result<()> {
        match self.registry.held().containers_of(&pod.id).first() {
            Some(held) => Err(held.refusal("container")),
            None => Ok(()),
        }
    }

    /// Gives back what the sandbox holds, in order; stops at the first step that fails.
    async fn release(&self, pod: &Pod) -> Result<()> {
        let (skips, sandboxes, record) = (&pod.skips, &self.sandboxes, pod.cell.get());
        fault::pass("pod.stop.pause").await.step("pause")?;
        skips.pass("pause", self.pauses.stop(pod).await)?;
        fault::pass("pod.stop.network").await.step("network")?;
        match sandboxes.release_network(&record).await {
            Ok(true) => did(&self.log, pod, None, Action::NetworkGone),
            Ok(false) => {}
            Err(error) => {
                skips.pass("network", Err(error))?;
                let abandoned = sandboxes.processes.machine.abandon(&pod.id).await;
                skips.pass("network", abandoned.step("abandon"))?;
            }
        }
        let volumes = sandboxes.images.release_image_volumes(&pod.id).await;
        skips.pass("image volumes", volumes.step("image volumes"))?;
        fault::pass("pod.stop.namespaces")
            .await
            .step("namespaces")?;
        skips.pass("namespaces", sandboxes.release_namespaces(&pod.id).await)?;
        fault::pass("pod.stop.cgroup").await.step("cgroup")?;
        skips.pass("cgroup", sandboxes.release_cgroup(&record).await)
    }
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
                && container.cell.get().phase == ContainerPhase::Exited
            {
                container.wait_exit_told().await;
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
