//! StopContainer (CRI-132, CRI-133): the stop signal, a grace period that a second call may
//! shorten, then SIGKILL to the whole cgroup.

use std::{sync::Arc, time::Duration};

use super::{
    error::{Error, Kind, Result},
    node::Node,
    op::Op,
    pods::Pods,
    record::ContainerPhase,
    state::{Container, Pod},
};
use crate::monitor::Ending;

/// A killed process that is not gone by then is stuck in the kernel.
const DEATH: Duration = Duration::from_secs(10);
/// A monitor that has not passed SIGKILL on by then does not answer at all (it is stopped, or stuck on a disk): it is
/// killed itself, and what it kept with it.
const UNANSWERED: Duration = Duration::from_secs(10);
/// Between the tries of the background killer.
const AGAIN: Duration = Duration::from_secs(5);
/// Tries of the background killer before it leaves the rest to the next Stop.
const TRIES: u32 = 120;

/// Returns when the container has ended and plugins were told (`container_exit.rs`). The driver has set the deadline.
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
        // The grace period runs whether or not the monitor answers.
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
            () = container.wait_exit_told() => return Ok(()),
            () = container.grace.over() => {}
            () = signalled => {}
        }
    }
    kill(cx, pod, container).await
}

/// SIGKILL to everything in the container, and the wait for its end, which plugins are told.
///
/// # Errors
/// TimedOut when the process does not die.
pub async fn kill(cx: &Arc<Pods>, pod: &Arc<Pod>, container: &Arc<Container>) -> Result<()> {
    kill_once(&cx.node, pod, container).await;
    if tokio::time::timeout(DEATH, container.wait_exit_told())
        .await
        .is_ok()
    {
        return Ok(());
    }
    if has_ended(container) {
        // It did die: what takes so long is a plugin, its monitor or its cgroup.
        container.wait_exit_told().await;
        return Ok(());
    }
    let (cx, pod, stuck) = (Arc::clone(cx), Arc::clone(pod), Arc::clone(container));
    tokio::spawn(async move {
        for _ in 0..TRIES {
            if tokio::time::timeout(AGAIN, stuck.wait_exit_told())
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

async fn kill_once(node: &Node, pod: &Arc<Pod>, container: &Container) {
    let launcher = &node.launcher;
    let dir = node.dirs.container(&container.id);
    let monitor = container.monitor();
    // Its end is on record before its monitor is let go: whoever recorded it gives back what is left.
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
            // Its watcher learns of its end, and does the rest by the cgroup.
            Err(_) => {
                tracing::warn!(container = %container.id, "its monitor does not answer: killed, and the container with it");
                if let Err(error) = launcher.end_monitor(&dir).await {
                    tracing::warn!(container = %container.id, %error, "could not be killed");
                }
            }
        }
        return;
    }
    // Unknown since a restart: killed by its cgroup, and nobody else will tell of its end.
    match launcher.cleanup(&dir).await {
        Ok(exit) => {
            let ending = exit.map_or(Ending::Lost, Ending::Exited);
            pod.post_container(&container.id, Op::Exited(ending));
        }
        Err(error) => tracing::warn!(container = %container.id, %error, "could not be killed"),
    }
}

fn has_ended(container: &Container) -> bool {
    container.cell.get().phase == ContainerPhase::Exited
}
