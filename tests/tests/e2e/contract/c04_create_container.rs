//! C-04 CreateContainer. How an answer is carried out: `evictions.rs`.

use std::fs;

use cairn_tests::{
    Daemon, Setup,
    plugin::{Deed, Plugin},
    until::until,
};
use nri::proto::Event;

use super::with_plugin;

#[tokio::test]
async fn contract_c04_the_container_is_hidden_until_all_plugins_agreed() {
    let (daemon, plugin) = with_plugin().await;
    let cri = daemon.cri();
    let pod = cri.pod("create").await;
    let gate = plugin.blocks(Event::CreateContainer);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move {
            pod.try_create(pod.cri.container_config("c", &["sleep", "1000"]))
                .await
        }
    });
    let seen = plugin.sees(Event::CreateContainer, "create").await;
    let told = seen.container.expect("a container");
    assert!(cri.containers().await.is_empty(), "it is not listed");
    let early = cri.container_by_id(&told.id, daemon.path("none"));
    early.try_status().await.expect_err("nor found");
    assert!(!call.is_finished());
    gate.open();
    let container = call.await.expect("no panic").expect("CreateContainer");
    assert_eq!(container.id, told.id);
    plugin.does(Event::CreateContainer, Deed::Error("not that one".into()));
    let before = daemon.inventory().await;
    let refused = pod
        .try_create(cri.container_config("d", &["true"]))
        .await
        .expect_err("vetoed");
    assert!(refused.message().contains("not that one"), "{refused}");
    assert_eq!(cri.containers().await.len(), 1);
    daemon.leaves_only(&before).await;
    plugin.behaves();
    pod.run("d", &["true"]).await.exited().await;
    pod.end().await;
}

#[tokio::test]
async fn contract_c04_a_container_of_a_stopped_pod_is_refused_without_an_event() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "counts").await;
    let pod = daemon.cri().pod("p").await;
    pod.stop().await.expect("StopPodSandbox");
    let config = pod.cri.container_config("c", &["true"]);
    pod.try_create(config)
        .await
        .expect_err("the pod is stopped");
    // Also none that comes late: the removal's is behind it.
    pod.remove().await.expect("RemovePodSandbox");
    let told = ["RunPodSandbox p", "StopPodSandbox p", "RemovePodSandbox p"];
    assert_eq!(plugin.list(), told);
}

/// A change of resources that hangs in the kernel holds the NRI turn; meanwhile a creation is on record, and waits for it.
#[tokio::test]
async fn contract_c04_a_plugin_that_joins_before_the_hook_of_a_creation_is_told_of_its_end() {
    let setup = Setup::default().env("CAIRN_FAULT", "container.update.cgroup=hang");
    let daemon = Daemon::with(setup).await;
    let pod = daemon.cri().pod("p").await;
    let other = pod.sleeper("other").await;
    let hanging = tokio::spawn(async move { other.limit_memory(64 << 20).await });
    let config = pod.cri.container_config("c", &["true"]);
    let creating = tokio::spawn({
        let pod = pod.clone();
        async move { pod.try_create(config).await }
    });
    let records = daemon.path("root/containers");
    until("the creation is on record", async || {
        let records = fs::read_dir(&records).ok()?;
        (records.flatten().count() == 2).then_some(())
    })
    .await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "late").await;
    plugin.does(Event::CreateContainer, Deed::Error("no".into()));
    assert!(!creating.is_finished(), "the turn is not free yet");
    assert!(creating.await.expect("no panic").is_err(), "vetoed");
    let told = ["CreateContainer", "StopContainer", "RemoveContainer"];
    assert_eq!(plugin.list(), told.map(|event| format!("{event} p c")));
    hanging.await.expect("no panic").expect_err("it hangs");
    plugin.behaves();
    pod.end().await;
}
