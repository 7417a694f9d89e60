//! Nobody waits for somebody else's grace period.

use std::time::{Duration, Instant};

use cairn_tests::{Daemon, cri::ContainerState};

const STUBBORN: &str = "trap '' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
const LONG: Duration = Duration::from_secs(60);
/// Far below the grace, far above what any step takes.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn in_a_minutes_grace_the_neighbour_starts_execs_is_updated_and_removed() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("grace").await;
    let stubborn = pod.run("stubborn", &["sh", "-c", STUBBORN]).await;
    stubborn.says("ready").await;
    let start = Instant::now();
    let stop = tokio::spawn({
        let stubborn = stubborn.clone();
        async move { stubborn.stop(LONG).await }
    });
    let neighbour = pod.sleeper("neighbour").await;
    assert_eq!(neighbour.exec(&["echo", "exec"]).await, "exec");
    neighbour
        .limit_memory(64 << 20)
        .await
        .expect("UpdateContainerResources");
    neighbour
        .stop(Duration::from_secs(5))
        .await
        .expect("StopContainer");
    neighbour.remove().await.expect("RemoveContainer");
    assert_eq!(stubborn.exec(&["echo", "me too"]).await, "me too");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(!stop.is_finished(), "the grace still runs");
    assert_eq!(stubborn.state().await, ContainerState::ContainerRunning);
    // A second stop shortens the first one's deadline.
    stubborn
        .stop(Duration::from_secs(1))
        .await
        .expect("StopContainer");
    stop.await.expect("it ends").expect("StopContainer");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(stubborn.status().await.exit_code, 137);
    pod.end().await;
}

#[tokio::test]
async fn stopping_the_pod_overtakes_a_grace_period() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("overtake").await;
    let stubborn = pod.run("stubborn", &["sh", "-c", STUBBORN]).await;
    stubborn.says("ready").await;
    let start = Instant::now();
    let stop = tokio::spawn({
        let stubborn = stubborn.clone();
        async move { stubborn.stop(LONG).await }
    });
    stubborn.says("ready").await;
    pod.stop().await.expect("StopPodSandbox");
    stop.await.expect("it ends").expect("StopContainer");
    pod.remove().await.expect("RemovePodSandbox");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[tokio::test]
async fn removing_the_container_overtakes_its_own_grace_period() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("remove").await;
    let stubborn = pod.run("stubborn", &["sh", "-c", STUBBORN]).await;
    stubborn.says("ready").await;
    let start = Instant::now();
    let stop = tokio::spawn({
        let stubborn = stubborn.clone();
        async move { stubborn.stop(LONG).await }
    });
    stubborn.says("ready").await;
    stubborn.remove().await.expect("RemoveContainer");
    // Whether the overtaken stop succeeds or finds nothing, it is over.
    let _ = stop.await.expect("it ends");
    assert!(stubborn.try_status().await.is_err());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
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
    let start = Instant::now();
    container.stop(LONG).await.expect("StopContainer");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(container.status().await.exit_code, 6);
    pod.end().await;
}

#[tokio::test]
async fn another_pod_is_served_while_one_is_stuck_in_its_grace() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let pod = cri.pod("stuck").await;
    let stubborn = pod.run("stubborn", &["sh", "-c", STUBBORN]).await;
    stubborn.says("ready").await;
    let stop = tokio::spawn({
        let stubborn = stubborn.clone();
        async move { stubborn.stop(LONG).await }
    });
    let start = Instant::now();
    let other = cri.pod("other").await;
    let container = other.sleeper("c").await;
    assert_eq!(cri.pods().await.len(), 2);
    assert_eq!(cri.containers().await.len(), 2);
    container
        .stop(Duration::from_secs(5))
        .await
        .expect("StopContainer");
    other.end().await;
    assert!(start.elapsed() < SOON && !stop.is_finished());
    pod.end().await;
    stop.await.expect("it ends").expect("StopContainer");
}
