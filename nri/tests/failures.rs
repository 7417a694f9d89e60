//! Requests that a plugin fails: required validators that are absent, late or lost.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use common::{Place, container, pod, until, until_active};
use nri::proto::Event;
use nri::{
    Adaptation, Handlers, PluginSettings,
    stub::{Stub, StubBuilder},
};

/// The validator of each container.
const JUDGE: &str = "10-judge";

type Settings = BTreeMap<nri::PluginId, PluginSettings>;

/// The operator requires the validator's verdict for every container.
fn required(change: impl FnOnce(&mut PluginSettings)) -> Settings {
    let mut settings = PluginSettings::default();
    settings.policy.required = true;
    change(&mut settings);
    Settings::from([(JUDGE.parse().unwrap(), settings)])
}

fn check() -> Handlers {
    Handlers::new().validate_container_adjustment(|_| async { Ok(()) })
}

fn stub(place: &Place, id: &str, handlers: Handlers) -> StubBuilder {
    let (index, name) = id.split_once('-').unwrap();
    Stub::builder(handlers)
        .index(index)
        .name(name)
        .socket(place.socket())
}

async fn create(nri: &Adaptation) -> Result<(), String> {
    let turn = nri.turn(Event::CreateContainer).await;
    let created = nri.create_container(&turn, pod("p"), container("c", "p"));
    created
        .await
        .map(drop)
        .map_err(|refused| refused.to_string())
}

fn is_gone(nri: &Adaptation, id: &str) -> bool {
    let here = |p: &nri::PluginInfo| p.id.to_string() == id && p.kind.is_some();
    !common::there(nri).iter().any(here)
}

#[tokio::test]
async fn a_required_validator_that_is_not_there_rejects_every_container() {
    let place = Place::new();
    // It subscribes to the validation only, so no other event requires it.
    let only_judges =
        required(|s| s.policy.events = "ValidateContainerAdjustment".parse().unwrap());
    let nri = place.builder().plugins(only_judges).start().await.unwrap();
    let refused = create(&nri).await.unwrap_err();
    assert!(
        refused.contains("10-judge")
            && refused.contains("not connected at ValidateContainerAdjustment"),
        "{refused}"
    );
    let check = stub(&place, JUDGE, check()).start().await.unwrap();
    until_active(&nri, JUDGE).await;
    assert_eq!(create(&nri).await, Ok(()));
    drop(check);
    until("it has ended", || is_gone(&nri, JUDGE)).await;
    assert!(create(&nri).await.unwrap_err().contains("10-judge"));
}

#[tokio::test]
async fn a_pod_that_may_do_without_required_plugins_does_without_their_verdict() {
    let place = Place::new();
    let mut settings = nri::Settings {
        plugins: required(|s| s.policy.events = "ValidateContainerAdjustment".parse().unwrap()),
        tolerate_missing_annotation: Some("bootstrap".into()),
        socket: Some(place.socket()),
        ..Default::default()
    };
    settings.plugin_dir = None;
    let nri = place.builder().settings(settings).start().await.unwrap();
    let turn = nri.turn(Event::CreateContainer).await;
    let mut bootstrap = pod("p");
    bootstrap
        .annotations
        .insert("bootstrap".into(), "true".into());
    nri.create_container(&turn, bootstrap, container("c", "p"))
        .await
        .unwrap();
}

/// Another plugin ends the validator after it handled the creation and before its validation.
async fn lost_before_its_verdict(settings: Settings) -> Result<(), String> {
    let place = Place::new();
    let nri = place.builder().plugins(settings).start().await.unwrap();
    let seated = Arc::new(Mutex::new(Some(
        stub(&place, JUDGE, check()).start().await.unwrap(),
    )));
    until_active(&nri, JUDGE).await;
    let watched = Arc::new(OnceLock::<Adaptation>::new());
    let _ = watched.set(nri.clone());
    let other = Handlers::new().create_container(move |_, _| {
        let (seated, watched) = (seated.clone(), watched.clone());
        async move {
            drop(seated.lock().unwrap().take());
            let nri = watched.get().unwrap();
            until("the validator has ended", || is_gone(nri, JUDGE)).await;
            Ok((None, Vec::new()))
        }
    });
    let _other = stub(&place, "20-other", other).start().await.unwrap();
    until_active(&nri, "20-other").await;
    create(&nri).await
}

#[tokio::test]
async fn a_required_validator_that_is_lost_before_its_verdict_rejects() {
    let refused = lost_before_its_verdict(required(|_| ())).await.unwrap_err();
    assert!(refused.contains("10-judge"), "{refused}");
    // If it is not required, only the connected validators are called.
    assert_eq!(lost_before_its_verdict(Settings::new()).await, Ok(()));
}

/// Creates a container while the validator is being synchronised; `joins` decides whether that
/// succeeds.
async fn while_the_judge_joins(settings: Settings, joins: bool) -> Result<(), String> {
    let place = Place::new();
    let builder = place.builder().plugins(settings);
    let limit = Duration::from_millis(if joins { 20_000 } else { 400 });
    let nri = builder.sync_timeout(limit).start().await.unwrap();
    let (begun, go_on) = (
        Arc::new(tokio::sync::Notify::new()),
        Arc::new(tokio::sync::Notify::new()),
    );
    let (reported, wait) = (begun.clone(), go_on.clone());
    let slow = Handlers::new()
        .validate_container_adjustment(|_| async { Err("judged".into()) })
        .synchronize(move |_, _| {
            let (reported, wait) = (reported.clone(), wait.clone());
            async move {
                reported.notify_one();
                wait.notified().await;
                Ok(Vec::new())
            }
        });
    let _judge = stub(&place, JUDGE, slow).register().await.unwrap();
    begun.notified().await;
    let mut creation = std::pin::pin!(create(&nri));
    if joins {
        let early = tokio::time::timeout(Duration::from_millis(100), &mut creation).await;
        assert!(early.is_err(), "it did not wait for the verdict: {early:?}");
        go_on.notify_one();
    }
    creation.await
}

#[tokio::test]
async fn a_validator_that_is_being_synchronised_is_waited_for() {
    for settings in [Settings::new(), required(|_| ())] {
        let refused = while_the_judge_joins(settings, true).await.unwrap_err();
        assert!(
            refused.contains("10-judge") && refused.contains("judged"),
            "{refused}"
        );
    }
    // A validator that fails to join is absent, which matters only if it is required.
    assert_eq!(while_the_judge_joins(Settings::new(), false).await, Ok(()));
    let refused = while_the_judge_joins(required(|_| ()), false)
        .await
        .unwrap_err();
    assert!(refused.contains("10-judge"), "{refused}");
}

/// A plugin that records begin and end of RunPodSandbox, and takes this time for it.
fn slow(time: Duration, record: &common::Record) -> Handlers {
    let record = record.clone();
    Handlers::new().run_pod_sandbox(move |pod| {
        let record = record.clone();
        async move {
            record.add("begins", &pod.id, "");
            tokio::time::sleep(time).await;
            record.add("ends", &pod.id, "");
            Ok(())
        }
    })
}

#[tokio::test]
async fn an_operation_has_its_own_time_and_no_plugin_is_blamed_when_it_is_over() {
    let place = Place::new();
    let builder = place.builder().request_timeout(Duration::from_secs(20));
    let nri = builder
        .operation_timeout(Duration::from_secs(6))
        .start()
        .await
        .unwrap();
    let record = common::Record::default();
    let mut stubs = Vec::new();
    // Two of them take longer together than the operation's timeout.
    for (id, needs) in [("10-a", 4_000), ("20-b", 4_000), ("30-c", 0)] {
        let slow = slow(Duration::from_millis(needs), &record);
        stubs.push(stub(&place, id, slow).start().await.unwrap());
        until_active(&nri, id).await;
    }
    let refused = nri.run_pod_sandbox(pod("p")).await.unwrap_err();
    let text = refused.to_string();
    assert_eq!(
        text,
        "RunPodSandbox was cancelled while plugin 20-b handled it"
    );
    // Each alone is within its timeout, so all stay connected. The operation's timeout does not
    // apply to a teardown.
    assert_eq!(common::there(&nri).len(), 3);
    nri.stop_pod_sandbox(pod("p")).await;
    assert_eq!(common::there(&nri).len(), 3);
}

#[tokio::test]
async fn a_plugin_whose_caller_gave_up_gets_no_second_event_meanwhile() {
    let place = Place::new();
    let limit = Duration::from_secs(60);
    let builder = place.builder().request_timeout(limit);
    let nri = builder.start().await.unwrap();
    let record = common::Record::default();
    let slow = slow(Duration::from_millis(400), &record);
    let _stub = stub(&place, "10-slow", slow).start().await.unwrap();
    until_active(&nri, "10-slow").await;
    let given_up = tokio::time::timeout(Duration::from_millis(100), nri.run_pod_sandbox(pod("p")));
    given_up.await.unwrap_err();
    let begun = Instant::now();
    nri.run_pod_sandbox(pod("q")).await.unwrap();
    assert_eq!(record.lines(), ["begins p", "ends p", "begins q", "ends q"]);
    // It got its next event after its answer, not after its timeout.
    assert!(begun.elapsed() < limit / 2, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_plugin_that_never_answers_who_gave_up_is_closed_when_its_time_is_over() {
    let place = Place::new();
    let limit = Duration::from_secs(1);
    let builder = place.builder().plugins(common::hasty("10-stuck", limit));
    let nri = builder.start().await.unwrap();
    let handlers = Handlers::new().run_pod_sandbox(|pod| async move {
        match pod.id.as_str() {
            "p" => std::future::pending().await,
            _ => Ok(()),
        }
    });
    let _stub = stub(&place, "10-stuck", handlers).start().await.unwrap();
    until_active(&nri, "10-stuck").await;
    let begun = Instant::now();
    let given_up = tokio::time::timeout(limit / 10, nri.run_pod_sandbox(pod("p")));
    given_up.await.unwrap_err();
    let reported = nri.run_pod_sandbox(pod("q")).await.unwrap();
    assert_eq!(reported.deliveries[0].outcome, nri::Outcome::Absent);
    assert!(place.seen.saw("10-stuck", |event| matches!(
        event,
        nri::PluginEvent::Closed { reason } if reason.starts_with("request-timeout")
    )));
    // The plugin's side of ttrpc has the same timeout, and may be slightly earlier.
    assert!(begun.elapsed() > limit * common::patience() * 9 / 10);
}

#[tokio::test]
async fn a_plugin_is_told_why_it_is_disconnected_and_when_it_comes_back() {
    let place = Place::new();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let into = reported.clone();
    let nri = place.builder().start().await.unwrap();
    let plugin = stub(&place, "10-back", check())
        .reconnect(true)
        .on_disconnect(move |why, again| into.lock().unwrap().push((why.to_string(), again)));
    let running = tokio::spawn(plugin.run());
    until_active(&nri, "10-back").await;
    nri.shutdown("enough").await;
    until("the disconnect is reported", || {
        !reported.lock().unwrap().is_empty()
    })
    .await;
    running.abort();
    let (why, again) = reported.lock().unwrap()[0].clone();
    assert!(
        why.contains("the runtime has ended the connection"),
        "{why}"
    );
    assert!(
        again >= Some(Duration::from_secs(5)),
        "a runtime that stops is not stormed: {again:?}"
    );
}
