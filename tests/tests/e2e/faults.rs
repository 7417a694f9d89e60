//! The crash matrix: every fault point of the daemon, once as an error and once as a crash.
//!
//! The points are read from the daemon's sources, so that the matrix is complete. After an error,
//! the call fails with the name of the point, leaves nothing behind, and a retry succeeds. After a
//! crash and a restart, all interrupted work is undone or can be removed, and the same life
//! succeeds.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use cairn_tests::{
    Daemon, bins,
    container::Container,
    cri::ContainerState,
    image::{Image, Layer},
    look,
    pod::Pod,
};
use tonic::Status;

/// Returns the names of all fault points with this prefix.
fn points(prefix: &str) -> BTreeSet<String> {
    let mut names = all_points();
    names.retain(|name| name.starts_with(prefix));
    assert!(
        !names.is_empty(),
        "no fault point begins with {prefix}: have they moved?"
    );
    names
}

fn all_points() -> BTreeSet<String> {
    let root = bins::repository().join("runtime/src");
    let mut names = BTreeSet::new();
    for path in look::tree(&root) {
        if Path::new(&path).extension().is_some_and(|e| e == "rs") {
            let source = fs::read_to_string(root.join(path)).expect("a source file");
            for call in ["fault::pass(\"", "fault::point(\""] {
                for rest in source.split(call).skip(1) {
                    let name = rest.split('"').next().unwrap_or_default();
                    names.insert(name.to_owned());
                }
            }
        }
    }
    names
}

/// A daemon in which one pod was run and removed, so that all one-time resources exist.
async fn ready() -> Daemon {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("warm-up").await;
    pod.run("c", &["true"]).await.exited().await;
    pod.end().await;
    daemon
}

/// Restarts the daemon with a fault armed, or without one.
async fn arm(daemon: &mut Daemon, fault: Option<&str>) {
    if daemon.yard.ending(daemon.pid()).is_none() {
        daemon.terminate().await;
    }
    let env = &mut daemon.setup_mut().env;
    env.retain(|(name, _)| name != "CAIRN_FAULT");
    env.extend(fault.map(|f| ("CAIRN_FAULT".to_owned(), f.to_owned())));
    daemon.serve().await;
}

/// The texts of the failed calls of a life.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    /// Records a failure; returns the value on success.
    fn note<T>(&mut self, step: &str, result: Result<T, Status>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                self.0.push(format!("{step}: {}", e.message()));
                None
            }
        }
    }
}

const SLEEPER: [&str; 3] = [
    "sh",
    "-c",
    "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done",
];

/// Runs a life in which each failed step is retried once, and must then succeed.
async fn life_with_retries(daemon: &Daemon, name: &str, failures: &mut Failures) {
    let cri = daemon.cri();
    let before = daemon.inventory().await;
    let pod = match failures.note("RunPodSandbox", cri.try_pod(cri.pod_config(name)).await) {
        Some(pod) => pod,
        None => {
            assert!(
                cri.pods().await.is_empty(),
                "a failed pod is listed: {:?}",
                failures.0
            );
            daemon.leaves_only(&before).await;
            cri.pod(name).await
        }
    };
    let before = daemon.inventory().await;
    let config = || cri.container_config("c", &SLEEPER);
    let container = match failures.note("CreateContainer", pod.try_create(config()).await) {
        Some(container) => container,
        None => {
            assert!(
                cri.containers().await.is_empty(),
                "a failed container is listed"
            );
            daemon.leaves_only(&before).await;
            pod.try_create(config()).await.expect("a retry works")
        }
    };
    let container = started(&pod, container, failures).await;
    if failures
        .note(
            "UpdateContainerResources",
            container.limit_memory(64 << 20).await,
        )
        .is_none()
    {
        container
            .limit_memory(64 << 20)
            .await
            .expect("a retry works");
    }
    let grace = Duration::from_secs(5);
    if failures
        .note("StopContainer", container.stop(grace).await)
        .is_none()
    {
        container.stop(grace).await.expect("a retry works");
    }
    if failures
        .note("RemoveContainer", container.remove().await)
        .is_none()
    {
        container.remove().await.expect("a retry works");
    }
    if failures.note("StopPodSandbox", pod.stop().await).is_none() {
        pod.stop().await.expect("a retry works");
    }
    if failures
        .note("RemovePodSandbox", pod.remove().await)
        .is_none()
    {
        pod.remove().await.expect("a retry works");
    }
}

/// Starts a container. If that fails, records the failure and starts another one.
async fn started(pod: &Pod, container: Container, failures: &mut Failures) -> Container {
    if failures
        .note("StartContainer", container.start().await)
        .is_some()
    {
        return container;
    }
    let status = container.status().await;
    assert_eq!(
        status.state(),
        ContainerState::ContainerExited,
        "{}",
        status.message
    );
    assert_eq!(status.reason, "StartError");
    container.remove().await.expect("RemoveContainer");
    let mut config = pod.cri.container_config("c", &SLEEPER);
    config.metadata.as_mut().expect("set").attempt = 1;
    pod.started(config).await
}

/// Runs a life until the daemon crashes; failures after that are expected.
async fn life_until_crash(daemon: &Daemon, name: &str) -> Result<(), Status> {
    let cri = daemon.cri();
    let pod = cri.try_pod(cri.pod_config(name)).await?;
    let container = pod.try_create(cri.container_config("c", &SLEEPER)).await?;
    container.start().await?;
    container.limit_memory(64 << 20).await?;
    container.stop(Duration::from_secs(5)).await?;
    container.remove().await?;
    pod.stop().await?;
    pod.remove().await
}

/// Tests an error at a point: reported by its name, no leftovers, a retry succeeds. Returns whether
/// it fired.
async fn fails_once(daemon: &mut Daemon, point: &str) -> bool {
    arm(daemon, Some(&format!("{point}=error"))).await;
    let before = daemon.inventory().await;
    let mut failures = Failures::default();
    life_with_retries(daemon, "fails", &mut failures).await;
    let name = point.split('@').next().unwrap_or(point);
    assert!(
        failures.0.len() <= 1,
        "{point} fires once: {:?}",
        failures.0
    );
    if let Some(text) = failures.0.first() {
        assert!(
            text.contains(name) && !text.contains('\n'),
            "{point} is named: {text}"
        );
    }
    assert!(daemon.cri().pods().await.is_empty() && daemon.cri().containers().await.is_empty());
    daemon.leaves_only(&before).await;
    !failures.0.is_empty()
}

/// Tests a crash at a point: after a restart all leftovers can be removed, and a new life succeeds.
/// Returns whether the daemon crashed.
async fn crashes_once(daemon: &mut Daemon, point: &str) -> bool {
    arm(daemon, Some(&format!("{point}=abort"))).await;
    let before = daemon.inventory().await;
    let lived = life_until_crash(daemon, "crashes").await;
    if lived.is_ok() && daemon.yard.ending(daemon.pid()).is_none() {
        daemon.leaves_only(&before).await;
        return false;
    }
    let ended = daemon.yard.ended(daemon.pid()).await;
    assert_eq!(ended.signal(), Some(6), "{point}: the daemon aborted");
    arm(daemon, None).await;
    let cri = daemon.cri();
    for pod in cri.pods().await {
        let status = cri.pod_status(&pod.id).await;
        assert!(
            status.is_ok(),
            "{point}: what is listed has a status: {status:?}"
        );
        let pod = cri.pod_by_id(&pod.id, "crashes");
        pod.stop()
            .await
            .unwrap_or_else(|e| panic!("{point}: StopPodSandbox: {e}"));
        pod.remove()
            .await
            .unwrap_or_else(|e| panic!("{point}: RemovePodSandbox: {e}"));
    }
    assert!(
        cri.containers().await.is_empty(),
        "{point}: a container without a pod"
    );
    daemon.leaves_only(&before).await;
    life_until_crash(daemon, "crashes")
        .await
        .unwrap_or_else(|e| panic!("{point}: again: {e}"));
    daemon.leaves_only(&before).await;
    true
}

/// Tests both at each point with this prefix.
async fn matrix(prefix: &str) {
    let mut daemon = ready().await;
    for point in points(prefix) {
        assert!(
            fails_once(&mut daemon, &point).await,
            "{point}=error is never reached"
        );
        assert!(
            crashes_once(&mut daemon, &point).await,
            "{point}=abort is never reached"
        );
    }
}

/// The prefixes of the tests below.
const BEGINNINGS: [&str; 10] = [
    "pod.start.",
    "pod.stop.",
    "pod.remove.",
    "container.create.",
    "container.start.",
    "container.update.",
    "container.exit.",
    "container.remove.",
    "store.",
    "image.",
];

#[test]
fn faults_have_a_test_for_each_beginning_of_a_name() {
    let tested = |name: &String| BEGINNINGS.iter().any(|begin| name.starts_with(begin));
    let forgotten: Vec<_> = all_points().into_iter().filter(|n| !tested(n)).collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
}

#[tokio::test]
async fn faults_at_each_phase_of_a_pods_start() {
    matrix("pod.start.").await;
}

#[tokio::test]
async fn faults_at_each_phase_of_a_pods_stop() {
    matrix("pod.stop.").await;
}

#[tokio::test]
async fn faults_at_each_phase_of_a_pods_removal() {
    matrix("pod.remove.").await;
}

#[tokio::test]
async fn faults_at_each_phase_of_a_containers_creation() {
    matrix("container.create.").await;
}

#[tokio::test]
async fn faults_at_each_phase_of_a_containers_start() {
    matrix("container.start.").await;
}

#[tokio::test]
async fn faults_at_each_phase_of_a_containers_update_and_removal() {
    matrix("container.update.").await;
    matrix("container.remove.").await;
}

#[tokio::test]
async fn faults_while_what_a_container_had_is_given_back() {
    let mut daemon = ready().await;
    for point in points("container.exit.") {
        let reached = crashes_once(&mut daemon, &point).await;
        assert!(reached, "{point}=abort is never reached");
        // No call fails at this point: the container's removal completes the step.
        arm(&mut daemon, Some(&format!("{point}=error"))).await;
        let before = daemon.inventory().await;
        let mut failures = Failures::default();
        life_with_retries(&daemon, "fails", &mut failures).await;
        assert_eq!(failures.0, [""; 0]);
        assert!(
            daemon.log().contains(&point),
            "{point}=error is never reached"
        );
        daemon.leaves_only(&before).await;
    }
}

#[tokio::test]
async fn faults_at_each_write_of_a_record() {
    let mut daemon = ready().await;
    for kind in ["store.pod", "store.container", "store.spec"] {
        let mut fired = 0;
        // The n-th write of a life, until a life has fewer writes.
        while crashes_once(&mut daemon, &format!("{kind}@{}", fired + 1)).await {
            fired += 1;
        }
        assert!(fired > 0, "{kind}: a life has a write of it");
    }
}

#[tokio::test]
async fn faults_while_an_image_is_unpacked_and_recorded() {
    let mut daemon = ready().await;
    for (n, point) in points("image.").into_iter().enumerate() {
        let layer = Layer::default().file("n", 0o644, format!("{n}").as_bytes());
        let image = Image::busybox(&format!("localhost/cairn-test/fault{n}:1")).layer(layer);
        let file = daemon.path("fault.tar");
        image.write(&file);
        arm(&mut daemon, Some(&format!("{point}=error"))).await;
        let before = daemon.inventory().await;
        let failed = daemon.import_file(&file).await;
        let printed = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(!failed.status.success(), "{point}=error is never reached");
        assert!(printed.contains(&point), "{point} is named: {printed}");
        daemon.leaves_only(&before).await;
        arm(&mut daemon, Some(&format!("{point}=abort"))).await;
        assert!(
            !daemon.import_file(&file).await.status.success(),
            "{point}=abort is never reached"
        );
        daemon.yard.ended(daemon.pid()).await;
        arm(&mut daemon, None).await;
        daemon.leaves_only(&before).await;
        let done = daemon.import_file(&file).await;
        assert!(
            done.status.success(),
            "{point}: a retry works: {}",
            cairn_tests::output::shown(&done)
        );
        let pod = daemon.cri().pod("runs").await;
        let mut config = pod.cri.container_config("c", &["cat", "/n"]);
        config.image.as_mut().expect("set").image = format!("localhost/cairn-test/fault{n}:1");
        let container = pod.started(config).await;
        assert_eq!(container.exited().await.exit_code, 0);
        pod.end().await;
    }
}
