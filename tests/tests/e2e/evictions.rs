//! Evictions, and the order in which the answer to CreateContainer is carried out (12.2): evictions
//! are handed over, updates of others are applied, then the adjustment is.

use cairn_tests::{
    Daemon, Setup,
    cri::ContainerStatus,
    look,
    plugin::Plugin,
    pod::{Container, Pod},
};
use nri::{
    adjust::{self, Adjust, SetResources},
    proto::{
        ContainerAdjustment, ContainerEviction, ContainerUpdate, CreateContainerResponse, Event,
    },
};

const LIMIT: i64 = 40 << 20;

fn evict(container: &Container, reason: &str) -> ContainerEviction {
    ContainerEviction {
        container_id: container.id.clone(),
        reason: reason.into(),
    }
}

fn limit(container: &str) -> ContainerUpdate {
    let mut update = adjust::update(container, false);
    update.memory_limit(LIMIT);
    update
}

/// A plugin that answers the creation of "new", and of nothing else.
fn answers_new(plugin: &Plugin, answer: CreateContainerResponse) {
    plugin.answers(move |_, container| match container.name.as_str() {
        "new" => answer.clone(),
        _ => CreateContainerResponse::default(),
    });
}

async fn memory_limit(container: &Container) -> i64 {
    let resources = container.status().await.resources.and_then(|r| r.linux);
    resources.map_or(0, |linux| linux.memory_limit_in_bytes)
}

/// The specs on disk: one for each container that was made with its adjustment.
fn specs(daemon: &Daemon) -> usize {
    look::tree(&daemon.path("root/specs")).len()
}

async fn two_sleepers(pod: &Pod) -> (Container, Container) {
    (pod.sleeper("victim").await, pod.sleeper("other").await)
}

#[tokio::test]
async fn contract_c04_an_eviction_is_handed_over_before_updates_and_those_before_the_adjustment() {
    // The update of another container never ends: what comes before it is done, nothing after it.
    let setup = Setup::default().env("CAIRN_FAULT", "container.update.cgroup=hang");
    let daemon = Daemon::with(setup).await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "evictor").await;
    let pod = daemon.cri().pod("p").await;
    let (victim, other) = two_sleepers(&pod).await;
    let mut adjust = ContainerAdjustment::default();
    adjust.add_env("ADJUSTED", "yes");
    let answer = CreateContainerResponse {
        adjust: Some(adjust),
        update: vec![limit(&other.id)],
        evict: vec![evict(&victim, "room for\nthe new one")],
    };
    answers_new(&plugin, answer);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move { pod.create("new", &["true"]).await }
    });
    let status = victim.exited().await;
    assert_eq!(status.message, "evicted by a plugin: room for the new one");
    assert!(!call.is_finished(), "the creation waits for the update");
    assert_eq!(specs(&daemon), 2, "the adjustment waits too");
    assert_eq!(memory_limit(&other).await, 0);
    call.abort();
}

#[tokio::test]
async fn contract_c04_updates_of_others_hold_though_the_adjustment_cannot_be_applied() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "updater").await;
    let pod = daemon.cri().pod("p").await;
    let (victim, other) = two_sleepers(&pod).await;
    let mut adjust = ContainerAdjustment::default();
    adjust.add_rlimit("RLIMIT_NONSENSE", 1, 1);
    let answer = CreateContainerResponse {
        adjust: Some(adjust),
        update: vec![limit(&other.id)],
        evict: vec![evict(&victim, "for nothing")],
    };
    answers_new(&plugin, answer);
    let config = pod.cri.container_config("new", &["true"]);
    let error = pod.try_create(config).await.expect_err("no such limit");
    assert!(error.message().contains("RLIMIT_NONSENSE"), "{error}");
    // Applied before the answer, not some time later.
    assert_eq!(memory_limit(&other).await, LIMIT);
    victim.exited().await;
    let undo: Vec<_> = plugin
        .list()
        .into_iter()
        .filter(|l| l.ends_with(" new"))
        .collect();
    let expected = [
        "CreateContainer p new",
        "StopContainer p new",
        "RemoveContainer p new",
    ];
    assert_eq!(undo, expected);
    pod.end().await;
}

#[tokio::test]
async fn an_update_or_an_eviction_that_fails_costs_the_creation_nothing() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "updater").await;
    let pod = daemon.cri().pod("p").await;
    let (_, other) = two_sleepers(&pod).await;
    let nobody = "f".repeat(64);
    let gone = ContainerEviction {
        container_id: nobody.clone(),
        ..Default::default()
    };
    let answer = CreateContainerResponse {
        update: vec![limit(&nobody), limit(&other.id)],
        evict: vec![gone],
        ..Default::default()
    };
    answers_new(&plugin, answer);
    pod.create("new", &["true"]).await;
    assert_eq!(memory_limit(&other).await, LIMIT);
    let log = daemon.log();
    for what in ["eviction", "update by a plugin"] {
        let line = log
            .lines()
            .find(|l| l.contains(what) && l.contains(&nobody));
        assert!(line.is_some(), "{what} of nobody is logged");
    }
    pod.end().await;
}

#[tokio::test]
async fn an_evicted_container_says_why_in_its_status_also_after_a_restart() {
    let mut daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "evictor").await;
    let pod = daemon.cri().pod("p").await;
    let (victim, other) = two_sleepers(&pod).await;
    let reason = evict(&victim, "too\ngreedy");
    let runtime = plugin.runtime();
    let failed = runtime.update_containers(Vec::new(), vec![reason]).await;
    assert!(failed.expect("UpdateContainers").is_empty());
    let says = |status: ContainerStatus| (status.exit_code, status.reason, status.message);
    let why = (
        137,
        "Error".to_owned(),
        "evicted by a plugin: too greedy".to_owned(),
    );
    assert_eq!(says(victim.exited().await), why);
    let told = plugin.sees(Event::StopContainer, "p").await.container;
    assert_eq!(told.expect("a container").status_message, why.2);
    other
        .stop(std::time::Duration::ZERO)
        .await
        .expect("StopContainer");
    assert_eq!(other.status().await.message, "", "it was not evicted");
    daemon.kill_and_restart().await;
    let victim = daemon.cri().container_by_id(&victim.id, victim.log);
    assert_eq!(says(victim.status().await), why);
    daemon.cri().pod_by_id(&pod.id, "p").end().await;
}
