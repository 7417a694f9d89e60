//! RemovePodSandbox (CRI-115, NRI-1140 to NRI-1144).
//!
//! ```text
//!  stop ─► containers removed ─► hook RemovePodSandbox ─► record, name
//! ```
//! Resumable as the stop is: the record goes last.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{
    error::{AtStep as _, Result},
    event_log::did,
    events::{EventKind, Events},
    hooks::Hooks,
    record::Mark,
    registry::Registry,
    request::{ContainerWork, Message},
    state::Pod,
};
use crate::{
    fault,
    trace::{Action, EventLog},
};

pub struct RemovePodSandbox {
    pub registry: Arc<Registry>,
    pub hooks: Arc<Hooks>,
    pub events: Events,
    pub log: EventLog,
}

impl RemovePodSandbox {
    /// # Errors
    /// The step that failed; a second call resumes there. Or it is removed, and a plugin that wants its
    /// failures to fail the request did not answer.
    pub async fn run(&self, pod: &Arc<Pod>) -> Result<()> {
        let what = format!("sandbox {}: remove", pod.id);
        let cell = &pod.cell;
        let mut told = pod.ask(Message::StopPod).await;
        if told.is_err() && !pod.stopped() {
            return told;
        }
        let mut removals = JoinSet::new();
        for container in pod.containers() {
            let (pod, what) = (Arc::clone(pod), what.clone());
            removals.spawn(async move {
                let work = ContainerWork::Remove;
                let removed = pod.ask_container(&container.id, work).await;
                (container, removed.map_err(|error| error.at(&what)))
            });
        }
        let mut left = Ok(());
        while let Some(end) = removals.join_next().await {
            let (container, removed) = end.step(&what)?;
            match pod.container(&container.id) {
                Some(_) => left = left.and(removed),
                None => told = told.and(removed),
            }
        }
        left?;
        if cell.get().hooks.remove != Mark::Done {
            fault::pass("pod.remove.hook").await.step(&what)?;
            if self.hooks.active() {
                cell.note(|record| record.hooks.remove = Mark::Begun).await;
            }
            let removed = self.hooks.remove_pod_sandbox(pod).await;
            told = told.and(removed.map_err(|error| error.at(&what)));
        }
        fault::pass("pod.remove.record").await.step(&what)?;
        did(&self.log, pod, None, Action::SandboxRemoved);
        cell.delete().await?;
        self.registry.forget(&cell.get());
        self.events.tell(pod, None, EventKind::Deleted);
        told
    }
}
