//! StopContainer (CRI-132, CRI-133): the stop signal, a grace period that a second call may
//! shorten, then SIGKILL to the whole cgroup.

use std::{sync::Arc, time::Duration};

use super::super::{
    Container, Pod,
    driver::ContainerWork,
    error::{Error, Kind, Result},
};
use crate::monitor::Ending;

/// A killed process that is not gone by then is stuck in the kernel.
const DEATH: Duration = Duration::from_secs(10);
/// Between the tries of the background killer.
const AGAIN: Duration = Duration::from_secs(5);
/// Tries of the background killer before it leaves the rest to the next Stop.
const TRIES: u32 = 120;

/// Returns when the container has ended and plugins were told. The driver has set the deadline.
///
/// # Errors
/// TimedOut when the process does not die; a background killer goes on.
pub async fn stop(pod: &Arc<Pod>, container: &Arc<Container>, grace: Duration) -> Result<()> {
    if !grace.is_zero() {
        let signal = container.cell.get().stop_signal_number;
        if let Some(monitor) = container.monitor()
            && let Err(error) = monitor.kill(signal, false).await
        {
            tracing::debug!(container = %container.id, %error, "the stop signal was not delivered");
        }
        tokio::select! {
            () = container.wait_ended() => return Ok(()),
            () = container.grace.over() => {}
        }
    }
    kill(pod, container).await
}

/// SIGKILL to everything in the container, and the wait for its end.
///
/// # Errors
/// TimedOut when the process does not die.
pub async fn kill(pod: &Arc<Pod>, container: &Arc<Container>) -> Result<()> {
    kill_once(pod, container).await;
    if tokio::time::timeout(DEATH, container.wait_ended())
        .await
        .is_ok()
    {
        return Ok(());
    }
    let (pod, stuck) = (Arc::clone(pod), Arc::clone(container));
    tokio::spawn(async move {
        for _ in 0..TRIES {
            if tokio::time::timeout(AGAIN, stuck.wait_ended())
                .await
                .is_ok()
            {
                return;
            }
            kill_once(&pod, &stuck).await;
        }
    });
    Err(Error::new(
        Kind::TimedOut,
        format!(
            "container {}: still alive {} s after SIGKILL",
            container.id,
            DEATH.as_secs()
        ),
    ))
}

async fn kill_once(pod: &Arc<Pod>, container: &Container) {
    if let Some(monitor) = container.monitor() {
        if let Err(error) = monitor.kill(libc::SIGKILL, true).await {
            tracing::warn!(container = %container.id, %error, "kill");
        }
        return;
    }
    // Unknown since a restart: killed by its cgroup, and nobody else will tell of its end.
    let dir = super::dir(&pod.services, &container.id);
    match pod.services.launcher.cleanup(&dir).await {
        Ok(exit) => {
            let ending = exit.map_or(Ending::Lost, Ending::Exited);
            pod.post_container(&container.id, ContainerWork::Exited(ending));
        }
        Err(error) => tracing::warn!(container = %container.id, %error, "kill"),
    }
}
