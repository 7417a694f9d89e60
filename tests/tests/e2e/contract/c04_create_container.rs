//! C-04 CreateContainer. How an answer is carried out: `evictions.rs`.

use cairn_tests::{
    Daemon,
    plugin::{Deed, Plugin},
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
