//! Evictions, and the order in which the answer to CreateContainer is applied (12.2): evictions,
//! updates of other containers, then the adjustment.

use std::time::Duration;

use cairn_tests::{
    Daemon, Setup,
    container::Container,
    cri::ContainerState,
    look,
    output::stdout,
    plugin::{Behavior, Plugin, Seen},
    pod::Pod,
    until,
};
use nri::{
    adjust::{self, Adjust, SetResources},
    proto::{
        ContainerAdjustment, ContainerEviction, ContainerUpdate, CreateContainerResponse, Event,
    },
};

use crate::policy::info;

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

/// The plugin answers the creation of "new" only.
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

/// Returns the number of specs on disk: one for each container whose adjustment was applied.
fn specs(daemon: &Daemon) -> usize {
    look::tree(&daemon.path("root/specs")).len()
}

async fn two_sleepers(pod: &Pod) -> (Container, Container) {
    (pod.sleeper("victim").await, pod.sleeper("other").await)
}

#[tokio::test]
async fn contract_c04_an_eviction_is_handed_over_before_updates_and_those_before_the_adjustment() {
    // The update of another container never ends: earlier steps are done, later ones are not.
    let setup = Setup::default().env("CAIRN_FAULT", "container.update.read=hang");
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

/// Returns the event log's lines that contain all these words.
async fn reported(daemon: &Daemon, words: &[&str]) -> Vec<String> {
    let log = stdout(&daemon.cairn(&["timeline", "--json"]).await);
    let has = |line: &&str| words.iter().all(|word| line.contains(word));
    log.lines().filter(has).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_wish_for_a_container_that_is_not_there_is_told_with_its_plugin_and_counted() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "updater").await;
    let pod = daemon.cri().pod("p").await;
    let nobody = "f".repeat(64);
    let errors = info(&daemon, "10-updater").await["errors"].as_u64();
    assert_eq!(errors, Some(0));

    // In an answer to an event.
    let gone = ContainerEviction {
        container_id: nobody.clone(),
        ..Default::default()
    };
    let answer = CreateContainerResponse {
        update: vec![limit(&nobody)],
        evict: vec![gone.clone()],
        ..Default::default()
    };
    answers_new(&plugin, answer);
    let new = pod.create("new", &["true"]).await;
    for (kind, request) in [
        ("update", "update failed"),
        ("request_failed", "eviction failed"),
    ] {
        let lines = reported(&daemon, &[&format!("\"{kind}\""), "10-updater", &nobody]).await;
        assert!(
            lines.len() == 1 && lines[0].contains(&new.id),
            "{request}: {lines:?}"
        );
        let log = daemon.log();
        let mut lines = log.lines().filter(|l| l.contains("10-updater"));
        assert!(
            lines.any(|l| l.contains(request) && l.contains(&nobody)),
            "{request}"
        );
    }
    let shown = info(&daemon, "10-updater").await;
    assert_eq!(shown["errors"], 2, "{shown}");
    assert!(
        shown["last_error"]
            .as_str()
            .is_some_and(|e| e.contains(&nobody)),
        "{shown}"
    );

    // On the plugin's initiative, even if it changes nothing.
    let nothing = ContainerUpdate {
        container_id: nobody.clone(),
        ..Default::default()
    };
    let runtime = plugin.runtime();
    let failed = runtime.update_containers(vec![nothing.clone()], vec![gone]);
    let both = [nothing.clone(), nothing];
    assert_eq!(
        failed.await.expect("UpdateContainers"),
        both,
        "the update and the eviction"
    );
    assert_eq!(info(&daemon, "10-updater").await["errors"], 4);
    let life = reported(&daemon, &["plugin_life", "10-updater", &nobody]).await;
    assert_eq!(life.len(), 1, "its eviction: {life:?}");
    let update = reported(
        &daemon,
        &["\"hook\":\"UpdateContainers\"", "10-updater", &nobody],
    )
    .await;
    assert_eq!(update.len(), 1, "{update:?}");
    pod.end().await;
}

#[tokio::test]
async fn an_eviction_is_told_with_plugin_and_reason_when_it_is_asked_for_and_at_the_stop() {
    let mut daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "evictor").await;
    let pod = daemon.cri().pod("p").await;
    let (victim, other) = two_sleepers(&pod).await;
    let stays = pod.sleeper("stays").await;
    let answer = CreateContainerResponse {
        evict: vec![evict(&victim, "in an answer")],
        ..Default::default()
    };
    answers_new(&plugin, answer);
    pod.create("new", &["true"]).await;
    let unasked = vec![evict(&other, "by itself")];
    let failed = plugin
        .runtime()
        .update_containers(Vec::new(), unasked)
        .await;
    assert!(failed.expect("UpdateContainers").is_empty());
    for (container, reason) in [(&victim, "in an answer"), (&other, "by itself")] {
        container.exited().await;
        let text = format!("evicted by 10-evictor: {reason}");
        let (id, evicted) = (container.id.as_str(), "\"step\":\"evicted\"");
        assert_eq!(
            reported(&daemon, &[id, evicted, "10-evictor", reason])
                .await
                .len(),
            1
        );
        let exited = reported(&daemon, &[id, "\"step\":\"exited\"", &text]).await;
        assert_eq!(exited.len(), 1, "{text}");
        let shown = stdout(&daemon.cairn(&["timeline", &pod.id]).await);
        let lines = shown.lines().filter(|line| line.contains(&text));
        assert_eq!(lines.count(), 2, "{shown}");
        let why = format!("evicted by a plugin: {reason}");
        let of_it = |s: &Seen| s.event == Event::StopContainer && s.container_id() == id;
        let seen = plugin.sees_where("its StopContainer", of_it).await;
        assert_eq!(seen.container.expect("a container").status_message, why);
    }
    stays.stop(Duration::ZERO).await.expect("StopContainer");
    assert_eq!(stays.status().await.message, "", "it was not evicted");
    daemon.kill_and_restart().await;
    let victim = daemon.cri().container_by_id(&victim.id, victim.log);
    let status = victim.status().await;
    let why = "evicted by a plugin: in an answer";
    assert_eq!((status.exit_code, &*status.reason), (137, "Error"));
    assert_eq!(status.message, why);
    daemon.cri().pod_by_id(&pod.id, "p").end().await;
}

#[tokio::test]
async fn a_call_that_a_crash_of_the_plugin_ended_is_a_call_and_an_error() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "brittle").await;
    let cri = daemon.cri();
    let first = cri.pod("first").await;
    let before = info(&daemon, "10-brittle").await["calls"].as_u64();
    plugin.does(Event::RunPodSandbox, Behavior::Die);
    let second = cri.pod("second").await;
    let shown = until("it has ended", || async {
        let shown = info(&daemon, "10-brittle").await;
        (shown["state"] == "gone").then_some(shown)
    })
    .await;
    assert_eq!(
        shown["calls"].as_u64(),
        before.map(|calls| calls + 1),
        "{shown}"
    );
    assert_eq!(shown["errors"], 1, "{shown}");
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn an_evicted_container_that_does_not_run_yet_is_never_started_also_after_a_restart() {
    let mut daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "evictor").await;
    let pod = daemon.cri().pod("p").await;
    let at_once = pod.create("at-once", &["true"]).await;
    let later = pod.create("later", &["true"]).await;
    for container in [&at_once, &later] {
        let unasked = vec![evict(container, "not here")];
        let runtime = plugin.runtime();
        let evicted = runtime.update_containers(Vec::new(), unasked);
        assert!(evicted.await.expect("UpdateContainers").is_empty());
    }
    let refused = async |container: Container| {
        let error = container.start().await.expect_err("it was evicted");
        let why = "evicted by 10-evictor: not here";
        assert!(error.message().contains(why), "{error}");
        let status = container.status().await;
        assert_eq!(status.state(), ContainerState::ContainerExited);
        assert!(status.message.contains(why), "{status:?}");
    };
    refused(at_once).await;
    daemon.kill_and_restart().await;
    let cri = daemon.cri();
    refused(cri.container_by_id(&later.id, later.log)).await;
    cri.pod_by_id(&pod.id, "p").end().await;
}

#[tokio::test]
async fn a_bad_update_of_one_plugin_costs_another_plugin_neither_its_update_nor_an_error() {
    let daemon = Daemon::start().await;
    let good = Plugin::join(&daemon.nri_socket(), "10", "good").await;
    let bad = Plugin::join(&daemon.nri_socket(), "20", "bad").await;
    let pod = daemon.cri().pod("p").await;
    let other = pod.sleeper("other").await;
    let answer = |change: fn(&mut ContainerUpdate)| {
        let mut update = adjust::update(&other.id, false);
        change(&mut update);
        CreateContainerResponse {
            update: vec![update],
            ..Default::default()
        }
    };
    let limits = |update: &mut ContainerUpdate| {
        update.memory_limit(LIMIT);
    };
    let asks_nonsense = |update: &mut ContainerUpdate| {
        update.cpuset_cpus("900");
    };
    answers_new(&good, answer(limits));
    answers_new(&bad, answer(asks_nonsense));
    pod.create("new", &["true"]).await;
    assert_eq!(memory_limit(&other).await, LIMIT);
    assert_eq!(info(&daemon, "10-good").await["errors"], 0);
    let shown = info(&daemon, "20-bad").await;
    assert_eq!(shown["errors"], 1, "{shown}");
    pod.end().await;
}

/// The window is between the read of the spec and RUNNING; a plugin holds it open.
#[tokio::test]
async fn an_update_during_a_start_reaches_the_cgroup() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "updater").await;
    let pod = daemon.cri().pod("p").await;
    let container = pod.create("c", &["sleep", "1000"]).await;
    let gate = plugin.blocks(Event::StartContainer);
    let start = tokio::spawn({
        let container = container.clone();
        async move { container.start().await }
    });
    plugin.sees(Event::StartContainer, "p").await;
    let updates = vec![limit(&container.id)];
    let runtime = plugin.runtime();
    let failed = runtime.update_containers(updates, Vec::new());
    assert!(failed.await.expect("UpdateContainers").is_empty());
    gate.open();
    start.await.expect("no panic").expect("StartContainer");
    assert_eq!(memory_limit(&container).await, LIMIT);
    let limit = look::memory_limit_below(daemon.cgroup_parent());
    assert_eq!(limit, Some(LIMIT), "in the kernel");
    pod.end().await;
}
