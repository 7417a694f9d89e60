//! C-12 UpdatePodSandbox.

use cairn_tests::{Daemon, plugin::Plugin};
use nri::proto::Event;

use super::refuses;

#[tokio::test]
async fn contract_c12_after_an_error_the_old_values_stay() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "vetoes").await;
    let pod = daemon.cri().pod("p").await;
    pod.share_cpu(300).await.expect("UpdatePodSandboxResources");
    plugin.does(Event::UpdatePodSandbox, refuses());
    pod.share_cpu(700).await.expect_err("vetoed");
    plugin.behaves();
    pod.end().await;
    let stop = plugin.sees(Event::StopPodSandbox, "p").await;
    let resources = stop.pod.linux.and_then(|linux| linux.pod_resources);
    let shares = resources.and_then(|r| r.cpu).and_then(|cpu| cpu.shares);
    assert_eq!(shares.map(|s| s.value), Some(300));
}

/// The plugin that holds the update up hears nothing of the end, which so does not wait for it.
#[tokio::test]
async fn contract_c12_a_stop_and_a_removal_wait_for_the_update_under_way() {
    let daemon = Daemon::start().await;
    let events = [Event::UpdatePodSandbox];
    let slow = Plugin::subscribed(&daemon.nri_socket(), "10", "slow", &events).await;
    let other = Plugin::join(&daemon.nri_socket(), "20", "other").await;
    for by in ["stop", "remove"] {
        let pod = daemon.cri().pod(by).await;
        let gate = slow.blocks(Event::UpdatePodSandbox);
        let updating = tokio::spawn({
            let pod = pod.clone();
            async move { pod.share_cpu(300).await }
        });
        slow.sees(Event::UpdatePodSandbox, by).await;
        let ending = tokio::spawn({
            let pod = pod.clone();
            async move {
                match by {
                    "stop" => pod.stop().await,
                    _ => pod.remove().await,
                }
            }
        });
        // Behind the call that ends the pod in the pod's queue: when this is answered, that one is being served.
        let config = pod.cri.container_config("c", &["true"]);
        drop(pod.try_create(config).await);
        gate.open();
        let updated = updating.await.expect("no panic");
        updated.expect("UpdatePodSandboxResources");
        ending.await.expect("no panic").expect(by);
        slow.behaves();
        drop(pod.remove().await);
        let list = other.list();
        let at = |event: &str| {
            list.iter()
                .position(|line| *line == format!("{event} {by}"))
        };
        let updated = at("PostUpdatePodSandbox").expect("the update is told");
        assert!(at("StopPodSandbox") > Some(updated), "{list:?}");
    }
}
