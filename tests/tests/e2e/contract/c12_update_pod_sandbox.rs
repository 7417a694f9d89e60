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
