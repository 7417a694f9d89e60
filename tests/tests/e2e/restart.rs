//! `kill -9` of the daemon, and of monitors: CRI-800…815.

use std::{fs, time::Duration};

use cairn_tests::{
    Daemon,
    cri::{ContainerState, PodSandboxState},
    look, until,
};

/// Writes numbered lines, fast enough to detect any gap.
const COUNTING: &str = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.02; done";

#[tokio::test]
async fn ten_pods_survive_a_killed_daemon_without_losing_a_line() {
    let mut daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut all = Vec::new();
    for n in 0..10 {
        let pod = cri.pod(&format!("p{n}")).await;
        let container = pod.run("c", &["sh", "-c", COUNTING]).await;
        all.push((pod, container));
    }
    let mortal = all[0]
        .0
        .run(
            "mortal",
            &[
                "sh",
                "-c",
                "while [ ! -e /dev/shm/die ]; do sleep 0.05; done; exit 42",
            ],
        )
        .await;
    let statuses = statuses(&all).await;
    daemon.kill().await;
    // One container ends while the daemon is down. Its neighbour's shm is the pod's, and reachable
    // from here.
    let ended = die_without_daemon(&daemon, &mortal.id);
    assert!(ended, "a container can end while the daemon is away");
    let seen: Vec<usize> = all.iter().map(|(_, c)| c.lines().len()).collect();
    for (n, (_, container)) in all.iter().enumerate() {
        until("lines go on while the daemon is dead", || async {
            (container.lines().len() > seen[n] + 5).then_some(())
        })
        .await;
    }
    daemon.serve().await;
    let cri = daemon.cri();
    assert_eq!(cri.pods().await.len(), 10);
    assert!(
        cri.pods()
            .await
            .iter()
            .all(|p| p.state() == PodSandboxState::SandboxReady)
    );
    let all: Vec<_> = all
        .iter()
        .map(|(pod, c)| {
            (
                cri.pod_by_id(&pod.id, &pod.config.hostname),
                cri.container_by_id(&c.id, c.log.clone()),
            )
        })
        .collect();
    assert_eq!(
        self::statuses(&all).await,
        statuses,
        "nothing about them has changed"
    );
    let mortal = cri.container_by_id(&mortal.id, mortal.log.clone());
    assert_eq!(
        mortal.exited().await.exit_code,
        42,
        "the exit code was kept for us"
    );
    for (pod, container) in &all {
        let seen = container.lines().len();
        until("lines go on after the restart", || async {
            (container.lines().len() > seen + 5).then_some(())
        })
        .await;
        assert_eq!(container.exec(&["echo", "hello"]).await, "hello");
        container.stop(Duration::ZERO).await.expect("StopContainer");
        let lines = container.lines();
        let expected: Vec<String> = (0..lines.len()).map(|i| i.to_string()).collect();
        assert_eq!(lines, expected, "no number is missing");
        pod.end().await;
    }
    assert!(look::cgroup_pids(daemon.cgroup_parent()).is_empty());
}

type Known = (String, i64, i64, Option<u32>);

/// Returns the values that must not change across a restart: state, times and pid.
async fn statuses(
    all: &[(cairn_tests::pod::Pod, cairn_tests::container::Container)],
) -> Vec<Known> {
    let mut known = Vec::new();
    for (_, container) in all {
        let status = container.status().await;
        assert_eq!(status.state(), ContainerState::ContainerRunning);
        known.push((
            status.id,
            status.created_at,
            status.started_at,
            container.pid().await,
        ));
    }
    known
}

/// Ends a container through its pod's shared memory, without the daemon.
fn die_without_daemon(daemon: &Daemon, id: &str) -> bool {
    let find = || {
        look::cgroup_pids(daemon.cgroup_parent())
            .into_iter()
            .find(|pid| {
                let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
                cgroup.contains(&id[..20])
            })
    };
    let Some(pid) = find() else { return false };
    if fs::write(format!("/proc/{pid}/root/dev/shm/die"), "").is_err() {
        return false;
    }
    until::blocking(until::PATIENCE, || find().is_none())
}

#[tokio::test]
async fn states_survive_a_killed_daemon() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("states").await;
    let created = pod
        .create("created", &["sh", "-c", "echo late; sleep 1000"])
        .await;
    let exited = pod.run("exited", &["sh", "-c", "exit 3"]).await;
    let before = exited.exited().await;
    let stopped = daemon.cri().pod("stopped").await;
    stopped.stop().await.expect("StopPodSandbox");
    let address = pod.ip().await;
    daemon.kill_and_restart().await;
    let cri = daemon.cri();
    let pod = cri.pod_by_id(&pod.id, "states");
    assert_eq!(pod.ip().await, address);
    let stopped = cri.pod_by_id(&stopped.id, "stopped");
    assert_eq!(
        stopped.status().await.state(),
        PodSandboxState::SandboxNotready
    );
    let exited = cri.container_by_id(&exited.id, exited.log.clone());
    assert_eq!(exited.status().await, before);
    let created = cri.container_by_id(&created.id, created.log.clone());
    assert_eq!(created.state().await, ContainerState::ContainerCreated);
    created
        .start()
        .await
        .expect("a created container starts after a restart");
    created.says("late").await;
    pod.end().await;
    stopped.remove().await.expect("RemovePodSandbox");
}

#[tokio::test]
async fn a_killed_monitor_costs_its_container_only_also_while_the_daemon_is_dead() {
    let mut daemon = Daemon::start().await;
    for with_daemon in [true, false] {
        let pod = daemon.cri().pod("lost").await;
        let victim = pod.sleeper("victim").await;
        let neighbour = pod.sleeper("neighbour").await;
        let pid = victim.pid().await.expect("a pid");
        let proc = daemon.yard.inside(format!("/proc/{pid}"));
        let monitor = look::status_field(&proc, "PPid")
            .and_then(|p| p.parse().ok())
            .expect("a parent");
        assert_ne!(monitor, daemon.pid(), "a container is its monitor's child");
        if !with_daemon {
            daemon.kill().await;
        }
        daemon.yard.kill(monitor, 9).await;
        if !with_daemon {
            daemon.serve().await;
        }
        let cri = daemon.cri();
        let victim = cri.container_by_id(&victim.id, victim.log.clone());
        let status = victim.exited().await;
        let why = (status.exit_code, status.reason.as_str());
        assert_eq!(why, (255, "MonitorLost"));
        until("the container's processes have ended", || async {
            (!proc.exists()).then_some(())
        })
        .await;
        let neighbour = cri.container_by_id(&neighbour.id, neighbour.log.clone());
        assert_eq!(neighbour.exec(&["echo", "here"]).await, "here");
        cri.pod_by_id(&pod.id, "lost").end().await;
    }
}

#[tokio::test]
async fn a_second_daemon_on_the_same_directories_leaves_with_the_firsts_pid() {
    let mut daemon = Daemon::start().await;
    let first = daemon.pid();
    let log = daemon.path("second.log");
    let argv = daemon.argv();
    let second = daemon.yard.run(&argv, &[], &log).await.expect("it starts");
    let ended = daemon.yard.ended(second).await;
    assert!(ended.code().is_some_and(|c| c != 0), "{ended:?}");
    let printed = fs::read_to_string(&log).expect("its log");
    let about = printed.lines().find(|l| l.contains(&first.to_string()));
    assert!(about.is_some(), "the pid {first} is named: {printed}");
    daemon.cri().pod("still").await.end().await;
}

#[tokio::test]
async fn a_terminated_daemon_leaves_its_containers_running() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("drain").await;
    let container = pod.sleeper("c").await;
    let ended = daemon.terminate().await;
    assert_eq!(ended.code(), Some(0), "{}", daemon.log_tail(10));
    assert!(!look::cgroup_pids(daemon.cgroup_parent()).is_empty());
    daemon.serve().await;
    let container = daemon
        .cri()
        .container_by_id(&container.id, container.log.clone());
    assert_eq!(container.exec(&["echo", "back"]).await, "back");
    daemon.cri().pod_by_id(&pod.id, "drain").end().await;
}

#[tokio::test]
async fn a_hangup_ends_nothing() {
    const SIGHUP: i32 = 1;
    let mut daemon = Daemon::start().await;
    daemon.yard.kill(daemon.pid(), SIGHUP).await;
    until("it is logged", || async {
        daemon.log().contains("ignored SIGHUP").then_some(())
    })
    .await;
    daemon.cri().pod("still").await.end().await;
}
