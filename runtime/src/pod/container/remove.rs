//! RemoveContainer (CRI-134): kill if need be, the hooks, then everything but the log file.
//!
//! Resumable: the record goes last, and a record whose Remove hook was begun is removed again
//! after a restart.

use std::sync::Arc;

use super::{
    super::{
        Container, Pod,
        error::{Result, Step as _},
        events::Change,
        record::{ContainerPhase, Mark},
    },
    exit, stop,
};
use crate::{fault, pod::journal::Step};

/// # Errors
/// The step that failed; a second call resumes there.
pub async fn remove(pod: &Arc<Pod>, container: &Arc<Container>) -> Result<()> {
    let services = &pod.services;
    let what = format!("container {}: remove", container.id);
    let phase = container.cell.get().phase;
    if matches!(phase, ContainerPhase::Running | ContainerPhase::Unknown) {
        stop::kill(pod, container).await?;
    }
    // A container that never ran, or whose exit was not told: Stop comes before Remove.
    exit::tell(pod, container).await;
    if container.cell.get().hooks.remove != Mark::Done {
        container
            .cell
            .change(|record| record.hooks.remove = Mark::Begun)
            .await?;
        services.hooks.remove_container(pod, container).await;
        // Not written: a crash from here on sends the event again, and handlers are
        // idempotent (NRI-430).
    }
    fault::pass("container.remove.files").await.step(&what)?;
    exit::give_back(pod, container).await;
    services
        .images
        .release_rootfs(&container.id)
        .await
        .step(&what)?;
    super::remove_volumes(services, &container.id).await?;
    services.specs.remove(&container.id).await?;
    fault::pass("container.remove.record").await.step(&what)?;
    container.cell.delete().await?;
    pod.forget(&container.id);
    services.journal.step(pod, Some(container), Step::Removed);
    services.events.tell(pod, Some(container), Change::Deleted);
    Ok(())
}
