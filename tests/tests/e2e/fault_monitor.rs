//! Monitors that do not answer, remain after a crash, or were never launched: every pod can still
//! be stopped.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon,
    container::Container,
    cri::{self, ContainerState},
    look,
    pod::{Pod, pod_namespaces},
    until,
};
use tonic::Code;

const SIGSTOP: i32 = 19;

/// Returns the pid of a container's monitor in the yard.
async fn monitor_of(daemon: &Daemon, container: &Container) -> i32 {
    let pid = container.pid().await.expect("a pid");
    let proc = daemon.yard.inside(format!("/proc/{pid}"));
    let parent = look::status_field(&proc, "PPid").and_then(|pid| pid.parse().ok());
    parent.expect("a parent")
}

fn monitors(daemon: &Daemon) -> Vec<String> {
    let all = look::processes(daemon.yard.pid());
    all.into_iter()
        .filter(|process| process.contains("cairn-monitor"))
        .collect()
}

async fn no_monitor_is_left(daemon: &Daemon) {
    until("every monitor has ended", || async {
        monitors(daemon).is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stopped_monitor_makes_nothing_unstoppable() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("stuck").await;
    let container = pod.sleeper("c").await;
    let pid = container.pid().await.expect("a pid");
    let monitor = monitor_of(&daemon, &container).await;
    daemon.yard.kill(monitor, SIGSTOP).await;
    let begun = Instant::now();
    let exec = container.try_exec(&["true"], 2).await;
    let exec = exec.expect_err("its monitor does not run");
    assert_eq!(exec.code(), Code::DeadlineExceeded, "{exec}");
    assert!(
        begun.elapsed() < Duration::from_secs(12),
        "{:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    container
        .stop(Duration::from_secs(1))
        .await
        .expect("StopContainer");
    assert!(
        begun.elapsed() < Duration::from_secs(40),
        "{:?}",
        begun.elapsed()
    );
    let status = container.status().await;
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (255, "MonitorLost")
    );
    assert!(!daemon.yard.inside(format!("/proc/{pid}/root")).exists());
    pod.end().await;
    no_monitor_is_left(&daemon).await;
}

#[tokio::test]
async fn a_pod_with_a_stopped_monitor_goes_also_after_a_restart() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("stuck").await;
    let container = pod.sleeper("c").await;
    let monitor = monitor_of(&daemon, &container).await;
    daemon.yard.kill(monitor, SIGSTOP).await;
    daemon.kill_and_restart().await;
    let cri = daemon.cri();
    let container = cri.container_by_id(&container.id, container.log.clone());
    until("its monitor has not answered", || async {
        let state = container.state().await;
        (state == ContainerState::ContainerUnknown).then_some(())
    })
    .await;
    cri.pod_by_id(&pod.id, "stuck").end().await;
    no_monitor_is_left(&daemon).await;
}

async fn sharing(daemon: &Daemon) -> Pod {
    let mut config = daemon.cri().pod_config("shared");
    pod_namespaces(&mut config).pid = cri::NamespaceMode::Pod.into();
    daemon.cri().try_pod(config).await.expect("RunPodSandbox")
}

fn pause_dir(daemon: &Daemon, pod: &Pod) -> PathBuf {
    let dir = daemon.path("state/pause").join(&pod.id);
    daemon.yard.inside(dir)
}

#[tokio::test]
async fn a_daemon_that_died_before_it_wrote_the_launch_file_leaves_a_pod_that_can_be_removed() {
    let mut daemon = Daemon::start().await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let pod = daemon.cri().pod("launch").await;
    daemon.kill().await;
    // The state after such a crash: the directory with an empty file.
    let dir = pause_dir(&daemon, &pod);
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join("launch"), "").expect("made");
    daemon.serve().await;
    daemon.cri().pod_by_id(&pod.id, "launch").end().await;
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn the_monitor_of_a_killed_pause_process_ends_with_its_pod() {
    let mut daemon = Daemon::start().await;
    let pod = sharing(&daemon).await;
    let text = fs::read_to_string(pause_dir(&daemon, &pod).join("pid")).expect("its pid file");
    let pid = text.lines().find_map(|line| line.strip_prefix("pid="));
    let pid: i32 = pid.expect("a pid").parse().expect("a number");
    daemon.yard.kill(pid, 9).await;
    until("the pause process has ended", || async {
        (!daemon.yard.inside(format!("/proc/{pid}/root")).exists()).then_some(())
    })
    .await;
    assert_eq!(monitors(&daemon).len(), 1, "its monitor remains");
    pod.end().await;
    no_monitor_is_left(&daemon).await;
}

#[tokio::test]
async fn a_monitor_that_no_record_owns_ends_at_the_next_start() {
    let mut daemon = Daemon::start().await;
    let pod = sharing(&daemon).await;
    daemon.kill().await;
    let record = format!("root/pods/{}.json", pod.id);
    fs::remove_file(daemon.path(&record)).expect("the record is there");
    daemon.serve().await;
    no_monitor_is_left(&daemon).await;
    until("its directory is gone", || async {
        (!pause_dir(&daemon, &pod).exists()).then_some(())
    })
    .await;
}

/// Sets the daemon's limit of open files; a soft limit may be raised again.
async fn limit_files(daemon: &Daemon, files: u64) {
    let (pid, files) = (
        format!("--pid={}", daemon.pid()),
        format!("--nofile={files}:"),
    );
    daemon.lines(&["prlimit", &pid, &files]).await;
}

#[tokio::test]
async fn an_exec_for_which_the_daemon_has_no_descriptors_fails_and_its_container_runs_on() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("starved").await;
    let container = pod.sleeper("c").await;
    container.exec(&["true"]).await;
    let proc = daemon.yard.inside(format!("/proc/{}", daemon.pid()));
    let fds = fs::read_dir(proc.join("fd")).expect("its descriptors");
    let names = fds.map(|fd| fd.expect("an entry").file_name());
    let open: BTreeSet<u64> = names.filter_map(|n| n.to_str()?.parse().ok()).collect();
    let mut refused = Vec::new();
    // The limit applies to descriptor numbers, not to their count: leave this many numbers below it
    // free.
    for spare in 0..4 {
        let taken = (0..).filter(|n| !open.contains(n)).nth(spare);
        limit_files(&daemon, taken.expect("numbers do not end")).await;
        if let Err(status) = container.try_exec(&["true"], 10).await {
            refused.push(status.message().to_owned());
        }
        assert_eq!(
            container.state().await,
            ContainerState::ContainerRunning,
            "{refused:?}"
        );
    }
    let named = refused
        .iter()
        .any(|text| text.contains("could not be taken over"));
    assert!(named, "{refused:?}");
    limit_files(&daemon, 1000).await;
    container.exec(&["true"]).await;
    pod.end().await;
}
