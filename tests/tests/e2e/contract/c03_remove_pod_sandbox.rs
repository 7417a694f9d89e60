//! C-03 RemovePodSandbox.

use std::{collections::BTreeMap, time::Duration};

use cairn_tests::{
    Daemon, Setup,
    cri::PodSandboxState,
    plugin::{Deed, Gate, Plugin, Seen},
    pod::Pod,
};
use nri::proto::Event;
use tokio::task::JoinHandle;
use tonic::Status;

use super::{namespace, with_plugin};

/// A stopped pod whose RemovePodSandbox blocks in the hook.
async fn in_remove(pod: &Pod, plugin: &Plugin) -> (Gate, JoinHandle<Result<(), Status>>, Seen) {
    let gate = plugin.blocks(Event::RemovePodSandbox);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move { pod.remove().await }
    });
    let seen = plugin
        .sees(Event::RemovePodSandbox, &pod.config.hostname)
        .await;
    (gate, call, seen)
}

async fn passes(gate: Gate, call: JoinHandle<Result<(), Status>>) {
    assert!(!call.is_finished(), "RemovePodSandbox waits for its hook");
    gate.open();
    call.await.expect("no panic").expect("RemovePodSandbox");
}

#[tokio::test]
async fn contract_c03_while_remove_blocks_all_containers_are_removed_and_told() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("removed").await;
    let container = pod.sleeper("c").await;
    pod.stop().await.expect("StopPodSandbox");
    let (gate, call, _) = in_remove(&pod, &plugin).await;
    assert!(daemon.cri().containers().await.is_empty());
    assert!(container.try_status().await.is_err());
    let events = plugin.events();
    let at = |event| events.iter().position(|e| *e == event);
    assert!(at(Event::RemoveContainer).expect("told") < at(Event::RemovePodSandbox).expect("told"));
    passes(gate, call).await;
    assert!(daemon.cri().pods().await.is_empty());
}

#[tokio::test]
async fn contract_c03_remove_of_a_running_pod_stops_it_first() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("running").await;
    pod.sleeper("c").await;
    let (gate, call, _) = in_remove(&pod, &plugin).await;
    let expected = [
        "RunPodSandbox running",
        "CreateContainer running c",
        "PostCreateContainer running c",
        "StartContainer running c",
        "PostStartContainer running c",
        "StopContainer running c",
        "StopPodSandbox running",
        "RemoveContainer running c",
        "RemovePodSandbox running",
    ];
    assert_eq!(plugin.list(), expected);
    let listed = daemon.cri().pods().await;
    assert!(
        listed
            .iter()
            .all(|p| p.state() == PodSandboxState::SandboxNotready)
    );
    passes(gate, call).await;
}

#[tokio::test]
async fn contract_c03_a_network_namespace_that_is_gone_is_not_sent() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("gone").await;
    pod.stop().await.expect("StopPodSandbox");
    let (gate, call, seen) = in_remove(&pod, &plugin).await;
    if let Some(path) = namespace(&daemon, &seen.pod, "network") {
        assert!(
            path.exists(),
            "a path is sent that no longer exists: {}",
            path.display()
        );
    }
    passes(gate, call).await;
}

#[tokio::test]
async fn contract_c03_remove_still_tells_who_the_pod_was() {
    let (daemon, plugin) = with_plugin().await;
    let cri = daemon.cri();
    let config = cri.pod_config("who");
    let pod = cri.try_pod(config.clone()).await.expect("RunPodSandbox");
    pod.stop().await.expect("StopPodSandbox");
    let (gate, call, seen) = in_remove(&pod, &plugin).await;
    let metadata = config.metadata.expect("set");
    assert_eq!(seen.pod.id, pod.id);
    assert_eq!(seen.pod.name, metadata.name);
    assert_eq!(
        (seen.pod.uid, seen.pod.namespace),
        (metadata.uid, metadata.namespace)
    );
    let sorted = |map: &std::collections::HashMap<String, String>| -> BTreeMap<String, String> {
        map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    assert_eq!(seen.pod.labels, sorted(&config.labels));
    // The runtime adds its own, as containerd does; the pod's are among them unchanged.
    let mut annotations = seen.pod.annotations;
    annotations.retain(|key, _| !key.starts_with("io.kubernetes.cri."));
    assert_eq!(annotations, sorted(&config.annotations));
    passes(gate, call).await;
}

#[tokio::test]
async fn contract_c03_remove_still_has_the_pods_addresses_also_over_a_restart() {
    let (mut daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("addressed").await;
    let ip = pod.ip().await;
    pod.stop().await.expect("StopPodSandbox");
    let status = pod.status().await.network.expect("network");
    assert_eq!(status.ip, "", "clients get no address of a stopped pod");
    drop(plugin);
    daemon.kill_and_restart().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "restarted").await;
    let pod = daemon.cri().pod_by_id(&pod.id, "addressed");
    let gate = plugin.blocks(Event::RemovePodSandbox);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move { pod.remove().await }
    });
    let seen = plugin.sees(Event::RemovePodSandbox, "addressed").await;
    assert_eq!(seen.pod.ips, [ip]);
    passes(gate, call).await;
}

#[tokio::test]
async fn contract_c02_and_c03_an_error_or_a_hang_never_prevents_removal() {
    let hasty = "[nri.plugin.\"20-second\"]\nrequest_timeout = \"1s\"";
    let daemon = Daemon::with(Setup::default().toml(hasty)).await;
    let first = Plugin::join(&daemon.nri_socket(), "10", "first").await;
    let second = Plugin::join(&daemon.nri_socket(), "20", "second").await;
    let last = Plugin::join(&daemon.nri_socket(), "30", "last").await;
    first.does(Event::StopPodSandbox, Deed::Error("no".into()));
    first.does(Event::RemovePodSandbox, Deed::Error("no".into()));
    second.does(Event::StopContainer, Deed::Hang);
    let pod = daemon.cri().pod("goes").await;
    pod.sleeper("c").await;
    pod.end().await;
    assert!(daemon.cri().pods().await.is_empty());
    assert_eq!(
        last.list().last().map(String::as_str),
        Some("RemovePodSandbox goes")
    );
    assert_eq!(first.list(), last.list(), "an error costs nobody an event");
    assert!(
        second.is_dismissed(Duration::from_secs(5)).await,
        "a plugin that hangs is closed"
    );
    let unknown = daemon.cri().pod_by_id(&"a".repeat(64), "unknown");
    unknown
        .remove()
        .await
        .expect("a pod that is unknown is removed, without an event");
    assert_eq!(last.list().len(), first.list().len());
}
