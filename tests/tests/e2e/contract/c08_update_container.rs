//! C-08 UpdateContainer and C-09 PostUpdateContainer.

use cairn_tests::{Daemon, plugin::Plugin};
use nri::{
    Handlers,
    proto::{Event, OptionalString},
};

use super::{LIMIT, connect, limit, memory_limit, refuses};

#[tokio::test]
async fn contract_c08_an_answers_updates_of_others_are_applied() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("p").await;
    let (target, other) = (pod.sleeper("target").await, pod.sleeper("other").await);
    let id = other.id.clone();
    let handlers = Handlers::new().update_container(move |_, _, _| {
        let update = limit(&id);
        async move { Ok(vec![update]) }
    });
    let _plugin = connect(&daemon, "10", handlers).await;
    target
        .limit_memory(64 << 20)
        .await
        .expect("UpdateContainerResources");
    assert_eq!(memory_limit(&other).await, LIMIT);
    assert_eq!(memory_limit(&target).await, 64 << 20);
    pod.end().await;
}

#[tokio::test]
async fn contract_c09_and_c13_a_failed_update_is_not_told_as_done() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "vetoes").await;
    let pod = daemon.cri().pod("p").await;
    let container = pod.sleeper("c").await;
    plugin.does(Event::UpdateContainer, refuses());
    plugin.does(Event::UpdatePodSandbox, refuses());
    container.limit_memory(64 << 20).await.expect_err("vetoed");
    pod.share_cpu(300).await.expect_err("vetoed");
    assert_eq!(memory_limit(&container).await, 0, "nothing has changed");
    plugin.behaves();
    pod.end().await;
    let events = plugin.events();
    for post in [Event::PostUpdateContainer, Event::PostUpdatePodSandbox] {
        assert!(!events.contains(&post), "{:?}", plugin.list());
    }
}

#[tokio::test]
async fn contract_c08_a_value_that_cannot_be_had_is_told_with_the_plugin_that_set_values() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("p").await;
    let target = pod.sleeper("target").await;
    let handlers = Handlers::new().update_container(|_, container, _| {
        let mut update = limit(&container.id);
        let resources = update
            .linux
            .get_or_insert_default()
            .resources
            .get_or_insert_default();
        resources.blockio_class = Some(OptionalString {
            value: "nonsense".to_owned(),
        });
        async move { Ok(vec![update]) }
    });
    let _plugin = connect(&daemon, "10", handlers).await;
    let refused = target
        .limit_memory(64 << 20)
        .await
        .expect_err("no such class");
    let text = refused.message();
    assert!(text.contains("with values of 10-updates"), "{text}");
    assert!(text.contains("blockio_class"), "{text}");
    pod.end().await;
}
