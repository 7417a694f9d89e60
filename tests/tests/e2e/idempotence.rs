//! Repeated calls, and calls on removed objects: CRI-113, 114, 115, 132, 134, 175.

use std::time::Duration;

use cairn_tests::Daemon;
use tonic::Code;

#[tokio::test]
async fn stop_and_remove_may_be_asked_for_again() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("twice").await;
    let container = pod.sleeper("c").await;
    for _ in 0..3 {
        container.stop(Duration::ZERO).await.expect("StopContainer");
    }
    for _ in 0..3 {
        container.remove().await.expect("RemoveContainer");
    }
    container
        .stop(Duration::ZERO)
        .await
        .expect("stopping a removed container succeeds");
    for _ in 0..3 {
        pod.stop().await.expect("StopPodSandbox");
    }
    for _ in 0..3 {
        pod.remove().await.expect("RemovePodSandbox");
    }
    pod.stop().await.expect("stopping a removed pod succeeds");
}

#[tokio::test]
async fn many_at_once_may_stop_and_remove_the_same() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("crowd").await;
    let container = pod.sleeper("c").await;
    let mut set = tokio::task::JoinSet::new();
    for n in 0..12 {
        let (pod, container) = (pod.clone(), container.clone());
        set.spawn(async move {
            match n % 4 {
                0 => container.stop(Duration::ZERO).await,
                1 => container.remove().await,
                2 => pod.stop().await,
                _ => pod.remove().await,
            }
            .unwrap_or_else(|e| panic!("call {n}: {e}"));
        });
    }
    while let Some(done) = set.join_next().await {
        done.expect("each call succeeds");
    }
    assert!(daemon.cri().pods().await.is_empty());
    assert!(daemon.cri().containers().await.is_empty());
}

#[tokio::test]
async fn the_same_pod_asked_for_by_two_callers_is_one_pod() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let config = cri.pod_config("same");
    let (one, two) = tokio::join!(cri.try_pod(config.clone()), cri.try_pod(config));
    // CRI-113: the second call attaches to the first, or fails because the name is in use; there
    // are never two pods.
    let mut ids = Vec::new();
    for answer in [one, two] {
        match answer {
            Ok(pod) => ids.push(pod.id),
            Err(error) => assert_eq!(error.code(), Code::AlreadyExists, "{error}"),
        }
    }
    assert!(!ids.is_empty(), "one of them returns the id");
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(cri.pods().await.len(), 1);
    cri.pod_by_id(&ids[0], "same").end().await;
}
