//! C-02 StopPodSandbox.

use std::fs;

use cairn_tests::{
    Daemon, Setup,
    client::Cri,
    container::Container,
    cri::{ContainerState, PodSandboxState},
    look,
    plugin::{Gate, Plugin, Seen},
    pod::Pod,
};
use nri::proto::Event;
use tokio::task::JoinHandle;
use tonic::Status;

use super::{host_pings, in_netns, namespace, with_plugin};

/// A pod with one running container whose StopPodSandbox blocks in the hook.
struct Stopping {
    gate: Gate,
    call: JoinHandle<Result<(), Status>>,
    pod: Pod,
    container: Container,
    seen: Seen,
}

impl Stopping {
    async fn passes(self) {
        assert!(
            !self.call.is_finished(),
            "StopPodSandbox waits for its hook"
        );
        self.gate.open();
        self.call.await.expect("no panic").expect("StopPodSandbox");
        self.pod.remove().await.expect("RemovePodSandbox");
    }
}

async fn in_stop(cri: &Cri, plugin: &Plugin, name: &str) -> Stopping {
    let pod = cri.pod(name).await;
    let container = pod.sleeper("c").await;
    let gate = plugin.blocks(Event::StopPodSandbox);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move { pod.stop().await }
    });
    let seen = plugin.sees(Event::StopPodSandbox, name).await;
    Stopping {
        gate,
        call,
        pod,
        container,
        seen,
    }
}

#[tokio::test]
async fn contract_c02_while_stop_blocks_all_containers_are_stopped_and_told() {
    let (daemon, plugin) = with_plugin().await;
    let stopping = in_stop(&daemon.cri(), &plugin, "stopped").await;
    assert_eq!(
        stopping.container.state().await,
        ContainerState::ContainerExited
    );
    let pids = look::cgroup_pids(daemon.cgroup_parent());
    assert!(
        pids.is_empty(),
        "no process of a container is left: {pids:?}"
    );
    let events = plugin.events();
    let at = |event| events.iter().position(|e| *e == event);
    assert!(
        at(Event::StopContainer).expect("it was told") < at(Event::StopPodSandbox).expect("so too")
    );
    stopping.passes().await;
}

#[tokio::test]
async fn contract_c02_while_stop_blocks_the_network_still_works() {
    let (daemon, plugin) = with_plugin().await;
    let stopping = in_stop(&daemon.cri(), &plugin, "network").await;
    let address = stopping
        .seen
        .pod
        .ips
        .first()
        .cloned()
        .expect("an address is told");
    assert!(
        host_pings(&daemon, &address).await,
        "the host reaches {address}"
    );
    let shown = in_netns(&daemon, &stopping.seen.pod, &["ip", "-o", "-4", "addr"]).await;
    assert!(shown.contains(&address), "{shown}");
    in_netns(
        &daemon,
        &stopping.seen.pod,
        &["ping", "-c", "1", "-W", "5", "10.88.0.1"],
    )
    .await;
    stopping.passes().await;
    assert!(
        !host_pings(&daemon, &address).await,
        "afterwards it is gone"
    );
}

#[tokio::test]
async fn contract_c02_while_stop_blocks_nothing_is_unmounted_or_deleted() {
    let (daemon, plugin) = with_plugin().await;
    let cri = daemon.cri();
    let pod = cri.pod("intact").await;
    let container = pod.sleeper("c").await;
    container.sh("echo kept > /dev/shm/kept").await;
    let mounts = |daemon: &Daemon| look::mounts(daemon.yard.pid());
    let before = mounts(&daemon);
    let gate = plugin.blocks(Event::StopPodSandbox);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move { pod.stop().await }
    });
    let seen = plugin.sees(Event::StopPodSandbox, "intact").await;
    let now = mounts(&daemon);
    // A container's own rootfs may go with the container; what is the pod's stays.
    let missing = before.difference(&now).filter(|m| !m.ends_with("/rootfs"));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "unmounted too early: {missing:?}");
    for kind in ["ipc", "uts", "network"] {
        let path = namespace(&daemon, &seen.pod, kind).expect("a path");
        assert!(path.exists(), "the {kind} namespace is pinned");
    }
    assert!(!look::cgroup_dirs(&seen.pod.linux.expect("a linux part").cgroup_parent).is_empty());
    let shm = before
        .iter()
        .find(|m| m.contains(&pod.id) && m.ends_with("shm"));
    let shm = shm.expect("the pod's shm is mounted under its id");
    let kept = fs::read_to_string(daemon.yard.inside(shm).join("kept"));
    assert_eq!(kept.expect("shm is intact"), "kept\n");
    gate.open();
    call.await.expect("no panic").expect("StopPodSandbox");
    let left: Vec<_> = mounts(&daemon)
        .into_iter()
        .filter(|m| m.contains(&pod.id))
        .collect();
    assert!(left.is_empty(), "still mounted: {left:?}");
    pod.remove().await.expect("RemovePodSandbox");
}

#[tokio::test]
async fn contract_c02_while_stop_blocks_the_status_still_answers() {
    let (daemon, plugin) = with_plugin().await;
    let stopping = in_stop(&daemon.cri(), &plugin, "status").await;
    let status = stopping.pod.status().await;
    assert_eq!(status.metadata.expect("metadata").name, "status");
    assert_eq!(daemon.cri().pods().await.len(), 1);
    assert_eq!(daemon.cri().containers().await.len(), 1);
    stopping.passes().await;
}

#[tokio::test]
async fn contract_c02_while_stop_blocks_namespaces_need_no_pause_process() {
    let (daemon, plugin) = with_plugin().await;
    let stopping = in_stop(&daemon.cri(), &plugin, "pinned").await;
    // No process is left in the pod; its namespaces can be entered all the same.
    assert!(look::cgroup_pids(daemon.cgroup_parent()).is_empty());
    let links = in_netns(&daemon, &stopping.seen.pod, &["ip", "-o", "link"]).await;
    assert!(links.contains("eth0"), "{links}");
    stopping.passes().await;
}

#[tokio::test]
async fn contract_c02_stop_is_told_once_also_over_a_restart() {
    let (mut daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("once").await;
    pod.stop().await.expect("StopPodSandbox");
    pod.stop().await.expect("StopPodSandbox");
    let stops = |plugin: &Plugin| {
        plugin
            .events()
            .iter()
            .filter(|e| **e == Event::StopPodSandbox)
            .count()
    };
    assert_eq!(stops(&plugin), 1);
    daemon.kill_and_restart().await;
    let again = Plugin::join(&daemon.nri_socket(), "10", "blocker").await;
    let pod = daemon.cri().pod_by_id(&pod.id, "once");
    pod.stop().await.expect("StopPodSandbox");
    pod.remove().await.expect("RemovePodSandbox");
    // It may have been joining still: then nobody waits for it.
    again.sees(Event::RemovePodSandbox, "once").await;
    assert_eq!(again.list(), ["RemovePodSandbox once"]);
}

#[tokio::test]
async fn contract_c02_a_pod_older_than_the_daemon_gets_its_stop_and_remove() {
    let (mut daemon, _plugin) = with_plugin().await;
    let pod = daemon.cri().pod("older").await;
    pod.sleeper("c").await;
    daemon.kill_and_restart().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "blocker").await;
    let (pods, containers) = plugin.synchronised().await;
    assert_eq!(
        (pods.len(), containers.len()),
        (1, 1),
        "Synchronize tells what there is"
    );
    daemon.cri().pod_by_id(&pod.id, "older").end().await;
    let expected = [
        "StopContainer older c",
        "StopPodSandbox older",
        "RemoveContainer older c",
        "RemovePodSandbox older",
    ];
    assert_eq!(plugin.list(), expected);
}

#[tokio::test]
async fn contract_c02_a_stop_that_failed_later_resumes_without_the_event() {
    let setup = Setup::default().env("CAIRN_FAULT", "pod.stop.network=error");
    let daemon = Daemon::with(setup).await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "counts").await;
    let cri = daemon.cri();
    let pod = cri.pod("p").await;
    pod.stop()
        .await
        .expect_err("the network cannot be released");
    assert_eq!(pod.status().await.state(), PodSandboxState::SandboxNotready);
    pod.stop().await.expect("it resumes");
    pod.remove().await.expect("RemovePodSandbox");
    let stops = plugin
        .events()
        .into_iter()
        .filter(|e| *e == Event::StopPodSandbox);
    assert_eq!(stops.count(), 1, "{:?}", plugin.list());
}
