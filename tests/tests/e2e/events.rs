//! GetContainerEvents: CRI-160.

use std::time::Duration;

use cairn_tests::{
    Daemon,
    client::Cri,
    cri::{self, ContainerEventType as Type, ContainerState, PodSandboxState},
    until,
    until::PATIENCE,
};
use tonic::{Code, Streaming};

type Stream = Streaming<cri::ContainerEventResponse>;

async fn subscribe(cri: &Cri) -> Stream {
    let mut runtime = cri.client.runtime.clone();
    let answer = runtime.get_container_events(cri::GetEventsRequest {}).await;
    answer.expect("GetContainerEvents").into_inner()
}

async fn next(stream: &mut Stream) -> Result<cri::ContainerEventResponse, tonic::Status> {
    let message = tokio::time::timeout(PATIENCE, stream.message()).await;
    let message = message.expect("an event comes")?;
    Ok(message.expect("the stream has no end of its own"))
}

/// Returns all events up to and including the deletion of `last`.
async fn until_deleted(stream: &mut Stream, last: &str) -> Vec<cri::ContainerEventResponse> {
    let mut events = Vec::new();
    loop {
        let event = next(stream).await.expect("an event");
        let end = event.container_id == last
            && event.container_event_type() == Type::ContainerDeletedEvent;
        events.push(event);
        if end {
            return events;
        }
    }
}

#[tokio::test]
async fn a_life_is_told_step_by_step_to_every_subscriber() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let (mut one, mut two) = (subscribe(&cri).await, subscribe(&cri).await);
    let pod = cri.pod("told").await;
    let container = pod.sleeper("c").await;
    container.stop(Duration::ZERO).await.expect("StopContainer");
    container.stop(Duration::ZERO).await.expect("StopContainer");
    container.remove().await.expect("RemoveContainer");
    pod.end().await;
    let (p, c) = (pod.id.as_str(), container.id.as_str());
    let events = until_deleted(&mut one, p).await;
    let order: Vec<_> = events
        .iter()
        .map(|e| (e.container_id.as_str(), e.container_event_type()))
        .collect();
    let expected = [
        (p, Type::ContainerCreatedEvent),
        (p, Type::ContainerStartedEvent),
        (c, Type::ContainerCreatedEvent),
        (c, Type::ContainerStartedEvent),
        (c, Type::ContainerStoppedEvent),
        (c, Type::ContainerDeletedEvent),
        (p, Type::ContainerStoppedEvent),
        (p, Type::ContainerDeletedEvent),
    ];
    assert_eq!(order, expected);
    assert!(events.is_sorted_by(|a, b| a.created_at < b.created_at));
    for event in &events {
        let status = event.pod_sandbox_status.as_ref().expect("a pod status");
        assert_eq!(status.metadata, pod.config.metadata, "{event:?}");
        let others = event.containers_statuses.iter().filter(|s| s.id != c);
        assert_eq!(others.count(), 0);
    }
    let states: Vec<_> = events[2..6]
        .iter()
        .map(|e| {
            e.containers_statuses
                .first()
                .map(cri::ContainerStatus::state)
        })
        .collect();
    let expected = [
        Some(ContainerState::ContainerCreated),
        Some(ContainerState::ContainerRunning),
        Some(ContainerState::ContainerExited),
        None,
    ];
    assert_eq!(states, expected, "each with the state it is about");
    let status = events[6].pod_sandbox_status.as_ref().expect("a pod status");
    assert_eq!(status.state(), PodSandboxState::SandboxNotready);
    assert_eq!(until_deleted(&mut two, p).await, events);
}

/// CRI-118.
#[tokio::test]
async fn the_status_of_a_pod_lists_its_containers_and_has_no_time() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let pod = cri.pod("listed").await;
    let container = pod.sleeper("c").await;
    let status = cri.client.pod_status(&pod.id, false).await;
    let status = status.expect("PodSandboxStatus");
    let ids: Vec<_> = status.containers_statuses.iter().map(|s| &s.id).collect();
    assert_eq!((ids, status.timestamp), (vec![&container.id], 0));
    pod.end().await;
}

#[tokio::test]
async fn a_container_that_ends_by_itself_is_told_to_have_stopped_once_with_its_code() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut stream = subscribe(&cri).await;
    let pod = cri.pod("ends").await;
    let ended = pod.run("ended", &["sh", "-c", "exit 7"]).await;
    ended.exited().await;
    ended.stop(Duration::ZERO).await.expect("StopContainer");
    let failed = pod.create("failed", &["/no/such/program"]).await;
    failed.start().await.expect_err("there is no such program");
    pod.end().await;
    let events = until_deleted(&mut stream, &pod.id).await;
    for (container, code) in [(&ended, 7), (&failed, 128)] {
        let codes: Vec<_> = events
            .iter()
            .filter(|e| e.container_event_type() == Type::ContainerStoppedEvent)
            .filter(|e| e.container_id == container.id)
            .flat_map(|e| &e.containers_statuses)
            .filter(|status| status.id == container.id)
            .map(|status| status.exit_code)
            .collect();
        assert_eq!(codes, [code]);
    }
}

#[tokio::test]
async fn a_subscriber_does_not_keep_the_daemon_from_ending() {
    let mut daemon = Daemon::start().await;
    let mut stream = subscribe(&daemon.cri()).await;
    daemon.terminate().await;
    let log = daemon.log();
    assert!(
        log.contains("drained: every request") && !log.contains("not drained"),
        "the subscriber was waited for: {}",
        daemon.log_tail(5)
    );
    let end = next(&mut stream).await.expect_err("the stream ends");
    assert_eq!(end.code(), Code::Unavailable);
}

#[tokio::test]
async fn an_exit_is_seen_without_being_asked_for() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("seen").await;
    let container = pod.run("c", &["sleep", "0.1"]).await;
    until("the list has the exit", || async {
        let list = pod.cri.containers().await;
        let state = list.iter().find(|c| c.id == container.id)?.state();
        (state == ContainerState::ContainerExited).then_some(())
    })
    .await;
    pod.end().await;
}
