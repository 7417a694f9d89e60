//! RemoveContainer (CRI-134): kill if need be, the hooks, then everything but the log file.
//!
//! Resumable: the record goes last, and a record whose Remove hook was begun is removed again
//! after a restart.

use std::sync::Arc;

use super::{
    container_exit::ContainerExit,
    dirs::remove_large_dir,
    error::{AtStep as _, Result},
    event_log::did,
    events::{EventKind, Events},
    hooks::Hooks,
    record::{ContainerPhase, Mark},
    spec::SpecStore,
    state::{Container, Pod},
    stop_container::StopContainer,
};
use crate::{
    fault,
    image::Images,
    trace::{Action, EventLog},
};

pub struct RemoveContainer {
    pub specs: SpecStore,
    pub images: Images,
    pub stop: StopContainer,
    pub exit: Arc<ContainerExit>,
    pub hooks: Arc<Hooks>,
    pub events: Events,
    pub log: EventLog,
}

impl RemoveContainer {
    /// # Errors
    /// The step that failed; a second call resumes there. Or it is removed, and a plugin that wants its
    /// failures to fail the request did not answer.
    pub async fn run(&self, pod: &Arc<Pod>, container: &Arc<Container>) -> Result<()> {
        let what = format!("container {}: remove", container.id);
        let phase = container.cell.get().phase;
        let skips = if pod.skips.demanded() {
            &pod.skips
        } else {
            &container.skips
        };
        if matches!(phase, ContainerPhase::Running | ContainerPhase::Unknown) {
            skips.pass("processes", self.stop.kill(pod, container).await)?;
        }
        let mut told = Ok(());
        let tells = container.cell.get().hooks.remove != Mark::Done;
        if tells {
            // Before the stop, too: a plugin that joins between the two would find in its list what has stopped.
            container
                .cell
                .note(|record| record.hooks.remove = Mark::Begun)
                .await;
        }
        // A container that never ran, or whose exit was not told: Stop comes before Remove.
        self.exit.send_stop_hook(pod, container).await;
        if tells {
            told = self.hooks.remove_container(pod, container).await;
            // Not written: a crash from here on sends the event again, and handlers are
            // idempotent (NRI-430).
        }
        fault::pass("container.remove.files").await.step(&what)?;
        self.exit.give_back(container).await;
        let released = self.images.release_rootfs(&container.id).await;
        skips.pass("root file system", released.step(&what))?;
        let volumes = self.exit.processes.dirs.volumes(&container.id);
        let removed = remove_large_dir(&self.images, &volumes).await;
        skips.pass("volumes", removed)?;
        let spec = async {
            self.specs.remove(&container.id).await?;
            fault::pass("container.remove.record").await.step(&what)
        };
        // An update that is under way finds neither.
        container.cell.delete_after(spec).await?;
        pod.forget(&container.id);
        did(&self.log, pod, Some(container), Action::Removed);
        self.events.tell(pod, Some(container), EventKind::Deleted);
        told.map_err(|error| error.at(&what))
    }
}
