//! C-10 StopContainer.

use std::time::Duration;

use cairn_tests::{Daemon, cri::ContainerState};
use nri::{Handlers, proto::Event};

use super::{LIMIT, connect, limit, memory_limit, with_plugin};

#[tokio::test]
async fn contract_c10_an_exit_is_told_once_before_the_pods_stop() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("exit").await;
    let container = pod.run("c", &["sh", "-c", "exit 3"]).await;
    container.exited().await;
    // Without any call: the exit itself is the event's cause.
    plugin.sees(Event::StopContainer, "exit").await;
    container.stop(Duration::ZERO).await.expect("StopContainer");
    container.remove().await.expect("RemoveContainer");
    pod.end().await;
    let expected = [
        "RunPodSandbox exit",
        "CreateContainer exit c",
        "PostCreateContainer exit c",
        "StartContainer exit c",
        "PostStartContainer exit c",
        "StopContainer exit c",
        "RemoveContainer exit c",
        "StopPodSandbox exit",
        "RemovePodSandbox exit",
    ];
    assert_eq!(plugin.list(), expected);
}

#[tokio::test]
async fn contract_c10_a_stop_waits_for_a_slow_plugin_and_takes_no_dead_process_for_alive() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("told").await;
    let container = pod.sleeper("c").await;
    let gate = plugin.blocks(Event::StopContainer);
    let mut call = tokio::spawn({
        let container = container.clone();
        async move { container.stop(Duration::from_secs(1)).await }
    });
    plugin.sees(Event::StopContainer, "told").await;
    assert_eq!(container.state().await, ContainerState::ContainerExited);
    // Longer than its grace and the time that a killed process is given to die.
    let early = tokio::time::timeout(Duration::from_secs(15), &mut call).await;
    assert!(early.is_err(), "it waits for the plugin: {early:?}");
    drop(gate);
    call.await.expect("it ends").expect("StopContainer");
    let log = daemon.log();
    assert!(!log.contains("could not be killed"), "{log}");
    pod.end().await;
}

#[tokio::test]
async fn contract_c10_an_answers_updates_of_others_are_applied() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("p").await;
    let (ends, other) = (pod.sleeper("ends").await, pod.sleeper("other").await);
    let id = other.id.clone();
    let handlers = Handlers::new().stop_container(move |_, container| {
        let update = (container.name == "ends").then(|| limit(&id));
        async move { Ok(update.into_iter().collect()) }
    });
    let _plugin = connect(&daemon, "10", handlers).await;
    ends.stop(Duration::ZERO).await.expect("StopContainer");
    cairn_tests::until("the other container is limited", || async {
        (memory_limit(&other).await == LIMIT).then_some(())
    })
    .await;
    pod.end().await;
}
