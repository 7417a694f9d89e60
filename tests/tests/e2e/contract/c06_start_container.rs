//! C-06 StartContainer.

use cairn_tests::{Daemon, cri::ContainerState, plugin::Plugin};
use nri::proto::Event;

use super::refuses;

#[tokio::test]
async fn contract_c06_a_veto_leaves_the_container_exited_with_start_error_and_stop_follows() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "vetoes").await;
    plugin.does(Event::StartContainer, refuses());
    let pod = daemon.cri().pod("p").await;
    let container = pod.create("c", &["true"]).await;
    let refused = container.start().await.expect_err("vetoed");
    assert!(refused.message().contains("not here"), "{refused}");
    let status = container.status().await;
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!(status.reason, "StartError");
    plugin.sees(Event::StopContainer, "p").await;
    let told: Vec<_> = plugin
        .list()
        .into_iter()
        .filter(|l| l.ends_with(" c"))
        .collect();
    let expected = [
        "CreateContainer p c",
        "PostCreateContainer p c",
        "StartContainer p c",
        "StopContainer p c",
    ];
    assert_eq!(told, expected);
    pod.end().await;
}
