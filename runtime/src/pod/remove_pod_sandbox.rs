//! RemovePodSandbox (CRI-115, NRI-1140 to NRI-1144).
//!
//! ```text
//!  stop ─► containers removed ─► hook RemovePodSandbox ─► record, name
//! ```
//! Resumable like the stop: the record is deleted last.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{
    error::{AtStep as _, Result},
    op::{Asker, Op},
    pods::Pods,
    record::Mark,
    state::Pod,
};
use crate::{fault, trace::Action};

/// # Errors
/// The step that failed; a second call resumes there. Or the pod is removed, and a plugin whose
/// failures must fail the request did not answer.
pub async fn run(cx: &Pods, pod: &Arc<Pod>) -> Result<()> {
    let what = format!("sandbox {}: remove", pod.id);
    let cell = &pod.cell;
    let mut notified = pod.ask(Asker::Runtime, Op::StopPod).await.map(drop);
    if notified.is_err() && !pod.stopped() {
        return notified;
    }
    let mut removals = JoinSet::new();
    for container in pod.containers() {
        let (pod, what) = (Arc::clone(pod), what.clone());
        removals.spawn(async move {
            let removed = pod
                .ask_container(Asker::Runtime, &container.id, Op::Remove)
                .await;
            let removed = removed.map(drop);
            (container, removed.map_err(|error| error.at(&what)))
        });
    }
    let mut left = Ok(());
    while let Some(end) = removals.join_next().await {
        let (container, removed) = end.step(&what)?;
        match pod.container(&container.id) {
            Some(_) => left = left.and(removed),
            None => notified = notified.and(removed),
        }
    }
    left?;
    if cell.get().hooks.remove != Mark::Done {
        fault::pass("pod.remove.hook").await.step(&what)?;
        if cx.notices.hooks.active() {
            cell.note(|record| record.hooks.remove = Mark::Begun).await;
        }
        let removed = cx.notices.hooks.remove_pod_sandbox(pod).await;
        notified = notified.and(removed.map_err(|error| error.at(&what)));
    }
    fault::pass("pod.remove.record").await.step(&what)?;
    cell.delete().await?;
    cx.registry.forget(&cell.get());
    cx.notices.became(pod, None, Action::SandboxRemoved);
    notified
}
