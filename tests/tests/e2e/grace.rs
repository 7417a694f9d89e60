//! A grace period delays only its own container.

use std::time::{Duration, Instant};

use cairn_tests::{
    Daemon, Setup, container::Container, cri::ContainerState, look, plugin::Plugin, pod::Pod, until,
};
use nri::proto::Event;

/// Reports SIGTERM and continues.
const STUBBORN: &str = "trap 'echo told' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
const LONG: Duration = Duration::from_secs(3600);
/// Far below the grace period, far above the time of any step.
const SOON: Duration = Duration::from_secs(60);

/// Waits for a future that must not take as long as the grace period.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(SOON, what).await;
    done.expect("it does not wait for the grace")
}

type Stop = tokio::task::JoinHandle<Result<(), tonic::Status>>;

/// A pod with a container that is in its grace period, and the call that stops it.
async fn in_grace(daemon: &Daemon, name: &str) -> (Pod, Container, Stop) {
    let pod = daemon.cri().pod(name).await;
    let stubborn = pod.run("stubborn", &["sh", "-c", STUBBORN]).await;
    stubborn.says("ready").await;
    let stop = tokio::spawn({
        let stubborn = stubborn.clone();
        async move { stubborn.stop(LONG).await }
    });
    stubborn.says("told").await;
    (pod, stubborn, stop)
}

#[tokio::test]
async fn in_a_minutes_grace_the_neighbour_starts_execs_is_updated_and_removed() {
    let daemon = Daemon::start().await;
    let (pod, stubborn, stop) = in_grace(&daemon, "grace").await;
    let joined = soon(Plugin::join(&daemon.nri_socket(), "10", "joins")).await;
    let (pods, containers) = joined.synchronised().await;
    assert_eq!((pods.len(), containers.len()), (1, 1));
    let neighbour = soon(pod.sleeper("neighbour")).await;
    assert_eq!(neighbour.exec(&["echo", "exec"]).await, "exec");
    let updated = soon(neighbour.limit_memory(64 << 20)).await;
    updated.expect("UpdateContainerResources");
    let stopped = soon(neighbour.stop(Duration::from_secs(5))).await;
    stopped.expect("StopContainer");
    soon(neighbour.remove()).await.expect("RemoveContainer");
    assert!(joined.events().contains(&Event::CreateContainer));
    assert_eq!(stubborn.exec(&["echo", "me too"]).await, "me too");
    assert!(!stop.is_finished(), "the grace still runs");
    assert_eq!(stubborn.state().await, ContainerState::ContainerRunning);
    // A second stop shortens the first one's deadline.
    let (short, start) = (Duration::from_secs(1), Instant::now());
    let second = soon(stubborn.stop(short)).await;
    second.expect("StopContainer");
    assert!(start.elapsed() >= short, "the grace was given");
    soon(stop).await.expect("it ends").expect("StopContainer");
    assert_eq!(stubborn.status().await.exit_code, 137);
    let left = look::cgroup_pids(daemon.cgroup_parent());
    assert!(left.is_empty(), "its children have ended, too: {left:?}");
    joined.sees(Event::StopContainer, "grace").await;
    pod.end().await;
}

#[tokio::test]
async fn stopping_the_pod_or_removing_the_container_overtakes_a_grace_period() {
    let daemon = Daemon::start().await;
    let (pod, _, stop) = in_grace(&daemon, "overtake").await;
    soon(pod.stop()).await.expect("StopPodSandbox");
    soon(stop).await.expect("it ends").expect("StopContainer");
    pod.remove().await.expect("RemovePodSandbox");

    let (pod, stubborn, stop) = in_grace(&daemon, "remove").await;
    soon(stubborn.remove()).await.expect("RemoveContainer");
    // The overtaken stop may succeed or fail with NotFound, but it must end.
    let _ = soon(stop).await.expect("it ends");
    assert!(stubborn.try_status().await.is_err());
    pod.end().await;
}

#[tokio::test]
async fn an_exit_in_the_grace_period_ends_it() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("exits").await;
    let script =
        "trap 'sleep 0.2; exit 6' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let container = pod.run("c", &["sh", "-c", script]).await;
    container.says("ready").await;
    soon(container.stop(LONG)).await.expect("StopContainer");
    assert_eq!(container.status().await.exit_code, 6);
    pod.end().await;
}

#[tokio::test]
async fn a_grace_period_that_ends_after_the_process_kills_nothing() {
    let hangs = Setup::default().env("CAIRN_FAULT", "container.exit.cgroup=hang");
    let mut daemon = Daemon::with(hangs).await;
    let pod = daemon.cri().pod("gives-back").await;
    let script = "trap 'exit 6' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let container = pod.run("c", &["sh", "-c", script]).await;
    container.says("ready").await;
    let stop = |grace| {
        let container = container.clone();
        tokio::spawn(async move { container.stop(grace).await })
    };
    let mut stopped = stop(LONG);
    container.exited().await;
    let dir = daemon.path("state/containers").join(&container.id);
    until("its monitor has ended", || async {
        (!dir.join("ctl.sock").exists()).then_some(())
    })
    .await;
    // The clean-up after a lost monitor fails at this file, and reports it.
    std::fs::write(dir.join("launch"), [0xff]).expect("written");
    let shortens = stop(Duration::ZERO);
    let early = tokio::time::timeout(Duration::from_secs(3), &mut stopped).await;
    assert!(
        early.is_err(),
        "what it had is still being given back: {early:?}"
    );
    assert!(
        !daemon.log().contains("could not be killed"),
        "{}",
        daemon.log()
    );
    daemon.setup_mut().env.clear();
    daemon.kill_and_restart().await;
    for call in [stopped, shortens] {
        call.await
            .expect("it ends")
            .expect_err("the daemon is killed");
    }
    let cri = daemon.cri();
    let pod = cri.pod_by_id(&pod.id, "gives-back");
    let container = cri.container_by_id(&container.id, container.log);
    assert_eq!(container.status().await.exit_code, 6);
    pod.end().await;
    assert!(!dir.exists());
}

#[tokio::test]
async fn another_pod_is_served_while_one_is_stuck_in_its_grace() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let (pod, _, stop) = in_grace(&daemon, "stuck").await;
    let plugin = soon(Plugin::join(&daemon.nri_socket(), "10", "late")).await;
    let other = soon(cri.pod("other")).await;
    plugin.sees(Event::RunPodSandbox, "other").await;
    let container = soon(other.sleeper("c")).await;
    assert_eq!(cri.pods().await.len(), 2);
    assert_eq!(cri.containers().await.len(), 2);
    let stopped = soon(container.stop(Duration::from_secs(5))).await;
    stopped.expect("StopContainer");
    soon(other.end()).await;
    assert!(!stop.is_finished());
    soon(pod.end()).await;
    soon(stop).await.expect("it ends").expect("StopContainer");
    plugin.sees(Event::StopContainer, "stuck").await;
}
