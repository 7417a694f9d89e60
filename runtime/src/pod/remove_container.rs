//! RemoveContainer (CRI-134): kills if necessary, sends the hooks, removes all but the log file.
//!
//! Resumable: the record is deleted last. A restart removes a record whose Remove hook has begun.

use std::sync::Arc;

use super::{
    container_exit,
    dirs::remove_large_dir,
    error::{AtStep as _, Result},
    pods::Pods,
    record::{ContainerPhase, Mark},
    state::{Container, Pod},
    stop_container,
};
use crate::{fault, trace::Action};

/// # Errors
/// The step that failed; a second call resumes there. Or the container is removed, and a plugin
/// whose failures must fail the request did not answer.
pub async fn run(cx: &Arc<Pods>, pod: &Arc<Pod>, container: &Arc<Container>) -> Result<()> {
    let what = format!("container {}: remove", container.id);
    let phase = container.cell.get().phase;
    let skips = if pod.skips.demanded() {
        &pod.skips
    } else {
        &container.skips
    };
    if matches!(phase, ContainerPhase::Running | ContainerPhase::Unknown) {
        skips.pass("processes", stop_container::kill(cx, pod, container).await)?;
    }
    let mut notified = Ok(());
    let notifies = container.cell.get().hooks.remove != Mark::Done;
    if notifies {
        // Before the stop, so that a joining plugin does not find a stopped container in its list.
        container
            .cell
            .note(|record| record.hooks.remove = Mark::Begun)
            .await;
    }
    // Stop precedes Remove, also for a container that never ran or whose exit was not sent.
    container_exit::send_stop_hook(cx, pod, container).await;
    if notifies {
        notified = cx.notices.hooks.remove_container(pod, container).await;
        // The mark is not written: a crash from here on sends the event again, and handlers are
        // idempotent (NRI-430).
    }
    fault::pass("container.remove.files").await.step(&what)?;
    container_exit::release(&cx.node, container).await;
    let released = cx.node.images.release_rootfs(&container.id).await;
    skips.pass("root file system", released.step(&what))?;
    let volumes = cx.node.dirs.volumes(&container.id);
    let removed = remove_large_dir(&cx.node.images, &volumes).await;
    skips.pass("volumes", removed)?;
    let spec = async {
        cx.node.specs.remove(&container.id).await?;
        fault::pass("container.remove.record").await.step(&what)
    };
    // A running update finds neither.
    container.cell.delete_after(spec).await?;
    pod.forget(&container.id);
    cx.notices.became(pod, Some(container), Action::Removed);
    notified.map_err(|error| error.at(&what))
}
