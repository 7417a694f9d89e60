//! StopContainer (CRI-132, CRI-133): the stop signal, a grace period that a second call may
//! shorten, then SIGKILL to the entire cgroup.

use std::{sync::Arc, time::Duration};

use super::{
    container_exit,
    error::{Error, Kind, Result},
    node::Node,
    pods::Pods,
    record::ContainerPhase,
    state::{Container, Pod},
};
use crate::monitor::Ending;

/// After this time a killed process is considered stuck in the kernel.
const DEATH: Duration = Duration::from_secs(10);
/// A monitor that has not delivered SIGKILL after this time does not answer at all (it is stopped,
/// or stuck on a disk): it is killed with its processes.
const UNANSWERED: Duration = Duration::from_secs(10);
/// Interval of the background killer.
const AGAIN: Duration = Duration::from_secs(5);
/// Attempts of the background killer before it leaves the rest to the next Stop.
const TRIES: u32 = 120;

/// Returns when the container has ended and plugins are notified. The driver sets the deadline.
///
/// # Errors
/// TimedOut when the process does not die; a background killer goes on.
pub async fn run(
    cx: &Arc<Pods>,
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    grace: Duration,
) -> Result<()> {
    if !grace.is_zero() {
        // The grace period runs even if the monitor does not answer.
        let signalled = async {
            let signal = container.cell.get().stop_signal_number;
            if let Some(monitor) = container.monitor()
                && let Err(error) = monitor.kill(signal, false).await
            {
                tracing::debug!(container = %container.id, %error, "the stop signal was not delivered");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = container.wait_exit_reported() => return Ok(()),
            () = container.grace.over() => {}
            () = signalled => {}
        }
    }
    kill(cx, pod, container).await
}

/// Kills everything in the container, and waits until it has ended and plugins are notified.
///
/// # Errors
/// TimedOut when the process does not die.
pub async fn kill(cx: &Arc<Pods>, pod: &Arc<Pod>, container: &Arc<Container>) -> Result<()> {
    kill_once(&cx.node, pod, container).await;
    if tokio::time::timeout(DEATH, container.wait_exit_reported())
        .await
        .is_ok()
    {
        return Ok(());
    }
    if has_ended(container) {
        // The process has died; a plugin, its monitor or its cgroup is slow.
        container.wait_exit_reported().await;
        return Ok(());
    }
    let (cx, pod, stuck) = (Arc::clone(cx), Arc::clone(pod), Arc::clone(container));
    tokio::spawn(async move {
        for _ in 0..TRIES {
            if tokio::time::timeout(AGAIN, stuck.wait_exit_reported())
                .await
                .is_ok()
            {
                return;
            }
            kill_once(&cx.node, &pod, &stuck).await;
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

async fn kill_once(node: &Node, pod: &Arc<Pod>, container: &Arc<Container>) {
    let launcher = &node.launcher;
    let dir = node.dirs.container(&container.id);
    let monitor = container.monitor();
    // Its end is recorded before its monitor is released; the recorder releases the rest.
    if has_ended(container) {
        return;
    }
    if let Some(monitor) = monitor {
        let asked = tokio::time::timeout(UNANSWERED, monitor.kill(libc::SIGKILL, true)).await;
        match asked {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(container = %container.id, %error, "could not be killed")
            }
            // Its watcher learns of its end, and cleans up by the cgroup.
            Err(_) => {
                tracing::warn!(container = %container.id, "its monitor does not answer: killed, and the container with it");
                if let Err(error) = launcher.end_monitor(&dir).await {
                    tracing::warn!(container = %container.id, %error, "could not be killed");
                }
            }
        }
        return;
    }
    // Unknown since a restart: killed by its cgroup, and without a watcher that reports its end.
    match launcher.cleanup(&dir).await {
        Ok(exit) => {
            let ending = exit.map_or(Ending::Lost, Ending::Exited);
            let (pod, container) = (Arc::clone(pod), Arc::clone(container));
            tokio::spawn(async move { container_exit::report(&pod, &container, ending).await });
        }
        Err(error) => tracing::warn!(container = %container.id, %error, "could not be killed"),
    }
}

fn has_ended(container: &Container) -> bool {
    container.cell.get().phase == ContainerPhase::Exited
}
