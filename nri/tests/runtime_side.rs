//! A runtime's settings, and the events for its own metrics.

mod common;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{Place, Record, container, hasty, pod, until, until_active};
use nri::{
    Adaptation, Delivery, Handlers, Observer, PluginEvent,
    proto::*,
    stub::{Stub, StubError},
};

fn hangs() -> Handlers {
    Handlers::new().stop_pod_sandbox(|_| async { std::future::pending().await })
}

async fn connect(place: &Place, index: &str, handlers: Handlers) -> Result<Stub, StubError> {
    let stub = Stub::builder(handlers).index(index).name("p");
    let mut stub = stub.socket(place.socket());
    stub.register().await
}

#[tokio::test]
async fn all_parts_of_a_list_together_have_their_own_limit() {
    let place = Place::new();
    let big = |n: usize| PodSandbox {
        annotations: [("pad".to_owned(), "x".repeat(3 << 20))].into(),
        ..pod(&format!("p{n}"))
    };
    place.runtime.all.lock().unwrap().pods = (0..8).map(big).collect();
    // The timeout suffices for each part, not for all of them.
    let builder = place.builder().sync_timeout(Duration::from_secs(30));
    let builder = builder.sync_total_timeout(Duration::from_millis(1));
    let nri = builder.start().await.unwrap();
    let _stub = connect(&place, "10", Record::default().handlers()).await;
    let late = |event: &PluginEvent| matches!(event, PluginEvent::Rejected { reason } if reason.starts_with("synchronize-failed: no answer within"));
    until("its time is over", || place.seen.saw("10-p", late)).await;
    assert!(common::there(&nri).is_empty());
}

#[tokio::test]
async fn a_runtime_says_who_it_is() {
    for (name, version) in [("", "1"), ("test", "")] {
        let place = Place::new();
        let builder = Adaptation::builder(name, version).no_external_plugins();
        let refused = builder.source(place.runtime.clone()).start().await;
        let refused = refused.map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("name and version"), "{refused}");
    }
}

/// Metrics of a runtime.
#[derive(Default)]
struct Counts {
    calls: Mutex<Vec<(String, Delivery)>>,
    active: Mutex<Vec<usize>>,
}

impl Observer for Counts {
    fn called(&self, operation: &str, call: &Delivery) {
        let call = (operation.to_owned(), call.clone());
        self.calls.lock().unwrap().push(call);
    }

    fn active(&self, plugins: usize) {
        self.active.lock().unwrap().push(plugins);
    }
}

#[tokio::test]
async fn an_observer_is_told_of_each_call_once_and_of_how_many_are_active() {
    let place = Place::new();
    let counts = Arc::new(Counts::default());
    let nri = place
        .builder()
        .observer(counts.clone())
        .start()
        .await
        .unwrap();
    let handlers = Handlers::new()
        .run_pod_sandbox(|_| async {
            let why = nri::Status::new(nri::Code::PermissionDenied, "not here");
            Err(why.into())
        })
        .stop_container(|_, _| async {
            let update = ContainerUpdate {
                container_id: "other".into(),
                ..Default::default()
            };
            Ok(vec![update])
        });
    // A plugin older than dedicated calls: two attempts count as one call.
    let stub = Stub::builder(handlers).index("10").name("p");
    let mut stub = stub.socket(place.socket()).state_change_only();
    let stub = stub.start().await.unwrap();
    until_active(&nri, "10-p").await;
    nri.run_pod_sandbox(pod("p")).await.unwrap_err();
    let turn = nri.turn(Event::StopContainer).await;
    nri.stop_container(&turn, pod("p"), container("c", "p"))
        .await;
    // Not subscribed, so not called.
    nri.remove_pod_sandbox(pod("p")).await;
    let calls = counts.calls.lock().unwrap().clone();
    let names: Vec<_> = calls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Synchronize", "RunPodSandbox", "StopContainer"]);
    assert_eq!(calls[2].1.updates, 1);
    let text = nri.metrics("t");
    let line = "t_plugin_invocations_total{plugin=\"10-p\",operation=\"RunPodSandbox\",status=\"error\",error=\"permission_denied\"} 1";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("t_active_plugins_total 1"), "{text}");
    drop(stub);
    until("it has ended", || common::there(&nri).is_empty()).await;
    until("that is reported", || {
        *counts.active.lock().unwrap() == [1, 0]
    })
    .await;
}

#[tokio::test]
async fn an_overdue_plugin_counts_as_active() {
    let place = Place::new();
    let mut plugins = hasty("10-p", Duration::from_millis(50));
    for settings in plugins.values_mut() {
        settings.policy.on_timeout = Some(nri::policy::OnTimeout::Skip);
    }
    let nri = place.builder().plugins(plugins).start().await.unwrap();
    let _stub = connect(&place, "10", hangs()).await.unwrap();
    until_active(&nri, "10-p").await;
    nri.stop_pod_sandbox(pod("p")).await;
    assert_eq!(nri.plugins()[0].state, nri::PluginState::Overdue);
    let text = nri.metrics("t");
    assert!(text.contains("t_active_plugins_total 1"), "{text}");
}

#[test]
fn a_child_of_a_launched_plugin_does_not_take_itself_for_it() {
    let mut child = std::process::Command::new("env");
    child
        .env("NRI_PLUGIN_NAME", "p")
        .env("NRI_PLUGIN_IDX", "10")
        .env("NRI_PLUGIN_SOCKET", "3")
        .env("KEPT", "1");
    let output = nri::stub::forget_launch(&mut child).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("NRI_PLUGIN_"), "{text}");
    assert!(text.contains("KEPT=1"), "{text}");
}
