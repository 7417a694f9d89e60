//! Required and must-run plugins, and requests of plugins on their own initiative.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use common::{
    Place, Record, active, container, plugin, pod, registered, until, until_active, update,
};
use nri::{CallError, Code, Handlers, PluginEvent, PluginSettings, proto::*};

fn settings(
    id: &str,
    change: impl FnOnce(&mut PluginSettings),
) -> BTreeMap<nri::PluginId, PluginSettings> {
    let mut settings = PluginSettings::default();
    change(&mut settings);
    BTreeMap::from([(id.parse().unwrap(), settings)])
}

#[tokio::test]
async fn a_required_plugin_that_is_absent_fails_pods_and_containers_unless_annotated() {
    let place = Place::new();
    let mut all = nri::Settings {
        socket: Some(place.socket()),
        plugin_dir: None,
        tolerate_missing_annotation: Some("let-me-in".into()),
        ..Default::default()
    };
    all.plugins = settings("10-must", |s| s.policy.required = true);
    let nri = place.builder().settings(all).start().await.unwrap();
    let refused = nri.run_pod_sandbox(pod("p")).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("10-must was not connected at RunPodSandbox"),
        "{refused}"
    );
    let turn = nri.turn(Event::CreateContainer).await;
    nri.create_container(&turn, pod("p"), container("c", "p"))
        .await
        .unwrap_err();
    // All other events proceed, teardown in particular.
    nri.start_container(pod("p"), container("c", "p"))
        .await
        .unwrap();
    nri.stop_pod_sandbox(pod("p")).await;
    let bootstrap = PodSandbox {
        annotations: BTreeMap::from([("let-me-in".into(), "true".into())]),
        ..pod("b")
    };
    nri.run_pod_sandbox(bootstrap.clone()).await.unwrap();
    nri.create_container(&turn, bootstrap, container("c", "b"))
        .await
        .unwrap();
    drop(turn);
    // With the plugin connected, the creation succeeds.
    let _stub = active(&nri, &place, "10-must", Record::default().handlers()).await;
    nri.run_pod_sandbox(pod("p")).await.unwrap();
    assert!(nri.metrics("x").contains("x_missing_required_plugins 0"));
}

#[tokio::test]
async fn a_required_plugin_that_gets_nothing_that_needs_it_is_refused_and_the_reason_is_listed() {
    let place = Place::new();
    let must = settings("10-must", |s| s.policy.required = true);
    let nri = place.builder().plugins(must).start().await.unwrap();
    let deaf = Handlers::new().post_start_container(|_, _| async { Ok(()) });
    let _stub = plugin(&place, "10-must", deaf).register().await;
    until("the reason is listed", || {
        let listed = nri.plugins();
        let why = listed[0].last_error.as_deref().unwrap_or_default();
        why.contains("must get one of RunPodSandbox, CreateContainer, ValidateContainerAdjustment")
            && listed[0].state == nri::PluginState::Absent
    })
    .await;
    let refused = nri.run_pod_sandbox(pod("p")).await.unwrap_err();
    assert!(refused.to_string().contains("10-must"), "{refused}");
    // One of them is sufficient.
    let validator = Handlers::new().validate_container_adjustment(|_| async { Ok(()) });
    let _stub = plugin(&place, "10-must", validator).register().await;
    until_active(&nri, "10-must").await;
}

#[tokio::test]
async fn a_must_run_plugin_gets_the_teardown_it_has_missed() {
    let place = Place::new();
    let must_run = settings("10-keeps", |s| s.policy.must_run = true);
    let nri = place.builder().plugins(must_run).start().await.unwrap();
    let record = Record::default();
    let stub = active(&nri, &place, "10-keeps", record.handlers()).await;
    drop(stub);
    until("it has ended", || nri.plugins()[0].kind.is_none()).await;
    let turn = nri.turn(Event::StopContainer).await;
    nri.post_start_container(pod("p"), container("c", "p"))
        .await;
    nri.stop_container(&turn, pod("p"), container("c", "p"))
        .await;
    drop(turn);
    nri.remove_container(pod("p"), container("c", "p")).await;
    nri.stop_pod_sandbox(pod("p")).await;
    assert_eq!(nri.plugins()[0].backlog, 3);
    let again = Record::default();
    let _stub = active(&nri, &place, "10-keeps", again.handlers()).await;
    nri.remove_pod_sandbox(pod("p")).await;
    assert_eq!(
        again.lines(),
        [
            "Synchronize",
            "StopContainer p c",
            "RemoveContainer p c",
            "StopPodSandbox p",
            "RemovePodSandbox p"
        ]
    );
    assert_eq!(nri.plugins()[0].backlog, 0);
}

#[tokio::test]
async fn a_must_run_plugin_that_joins_behind_the_back_of_a_removal_is_told_of_it() {
    let place = Place::new();
    let must_run = settings("20-keeps", |s| s.policy.must_run = true);
    let nri = place.builder().plugins(must_run).start().await.unwrap();
    let hold = Arc::new(tokio::sync::Semaphore::new(0));
    let (held, entered) = (hold.clone(), Arc::new(AtomicUsize::new(0)));
    let count = entered.clone();
    let slow = Handlers::new().remove_pod_sandbox(move |_| {
        let held = held.clone();
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            held.acquire().await.unwrap().forget();
            Ok(())
        }
    });
    let _slow = active(&nri, &place, "10-slow", slow).await;
    let removal = {
        let nri = nri.clone();
        tokio::spawn(async move { nri.remove_pod_sandbox(pod("p")).await })
    };
    until("the removal is under way", || {
        entered.load(Ordering::SeqCst) == 1
    })
    .await;
    let record = Record::default();
    let _late = active(&nri, &place, "20-keeps", record.handlers()).await;
    hold.add_permits(1);
    removal.await.unwrap();
    until("the event arrives", || {
        record.lines() == ["Synchronize", "RemovePodSandbox p"]
    })
    .await;
    until("nothing is kept", || {
        nri.plugins().iter().all(|p| p.backlog == 0)
    })
    .await;
}

#[tokio::test]
async fn unsolicited_updates_are_applied_and_what_fails_is_named() {
    let place = Place::new();
    *place.runtime.fails_for.lock().unwrap() = Some("bad".into());
    let nri = place.builder().start().await.unwrap();
    let stub = active(&nri, &place, "10-a", Record::default().handlers()).await;
    let evict = ContainerEviction {
        container_id: "e".into(),
        reason: "too loud".into(),
    };
    let runtime = stub.runtime();
    let failed = runtime
        .update_containers(vec![update("good"), update("bad")], vec![evict])
        .await
        .unwrap();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].container_id, "bad");
    assert_eq!(
        place.runtime.updates.lock().unwrap()[0].container_id,
        "good"
    );
    assert_eq!(
        place.runtime.evictions.lock().unwrap()[0],
        ("e".into(), "too loud".into())
    );
    assert!(place.seen.saw("10-a", |e| matches!(
        e,
        PluginEvent::Unsolicited { failed: 1, .. }
    )));
    let failed = runtime.evict("bad", "too loud").await.unwrap_err();
    assert!(
        matches!(&failed, CallError::Status(s) if s.is(Code::NotFound) && s.message.contains("bad")),
        "{failed}"
    );
    assert!(place.seen.saw("10-a", |e| matches!(
        e,
        PluginEvent::RequestFailed { container, .. } if container == "bad"
    )));
}

#[tokio::test]
async fn a_plugin_that_asks_for_updates_inside_its_handler_is_answered() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let runtime: Arc<Mutex<Option<nri::stub::Runtime>>> = Arc::default();
    let slot = runtime.clone();
    let handlers = Handlers::new().create_container(move |_, c| {
        let runtime = slot.lock().unwrap().clone().unwrap();
        async move {
            // An update of another container succeeds; one of the container being created is
            // refused.
            let failed = runtime
                .update_containers(vec![update("other"), update(&c.id)], vec![])
                .await?;
            assert_eq!(failed.len(), 1);
            Ok((None, Vec::new()))
        }
    });
    let stub = registered(&place, "10-a", handlers).await;
    *runtime.lock().unwrap() = Some(stub.runtime());
    until_active(&nri, "10-a").await;
    let turn = nri.turn(Event::CreateContainer).await;
    nri.create_container(&turn, pod("p"), container("c", "p"))
        .await
        .unwrap();
    assert_eq!(place.runtime.updates.lock().unwrap().len(), 1);
}
