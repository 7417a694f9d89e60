//! Two instances of one plugin, as in the rollout of a DaemonSet: the newer is called, the older is
//! kept as a shadow.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{Place, Record, container, go::go_plugin, pod, until, until_active};
use nri::proto::Event;
use nri::{
    Adaptation, Handlers, PluginEvent, PluginState,
    stub::{Stub, StubBuilder},
};
use tokio::sync::Semaphore;

fn plugin(place: &Place, handlers: Handlers) -> StubBuilder {
    let builder = Stub::builder(handlers).index("10").name("go");
    builder.socket(place.socket())
}

/// Returns the states of the present plugins.
fn states(nri: &Adaptation) -> Vec<PluginState> {
    common::there(nri).iter().map(|p| p.state).collect()
}

async fn until_shadowed(nri: &Adaptation) {
    let both = [PluginState::Active, PluginState::Shadowed];
    until("one is called, the other in its shadow", || {
        states(nri) == both
    })
    .await;
}

fn registered(place: &Place) -> usize {
    let all = place.seen.plugins.lock().unwrap();
    let is = |event: &PluginEvent| matches!(event, PluginEvent::Registered { .. });
    all.iter().filter(|(_, event)| is(event)).count()
}

/// Runs lives of containers, one after the other, until it is stopped. Every creation must succeed.
async fn client(nri: Adaptation, number: usize, stop: Arc<AtomicBool>, made: Arc<AtomicUsize>) {
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let of = format!("p{number}");
        let id = format!("c{number}-{n}");
        let both = || (pod(&of), container(&id, &of));
        let turn = nri.turn(Event::CreateContainer).await;
        let (p, c) = both();
        let created = nri.create_container(&turn, p, c).await;
        let created = created.unwrap_or_else(|e| panic!("{id} cannot be created: {e}"));
        assert_eq!(created.merged.adjust.annotations["go"], "was here");
        drop(turn);
        let (p, c) = both();
        nri.post_create_container(p, c).await;
        let (p, c) = both();
        nri.start_container(p, c).await.expect("it may start");
        let (p, c) = both();
        nri.post_start_container(p, c).await;
        let turn = nri.turn(Event::StopContainer).await;
        let (p, c) = both();
        nri.stop_container(&turn, p, c).await;
        drop(turn);
        let (p, c) = both();
        nri.remove_container(p, c).await;
        made.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_go_instances_change_places_under_eight_clients_and_each_event_goes_to_one() {
    const CLIENTS: usize = 8;
    let place = Place::new();
    let builder = place.builder().request_timeout(Duration::from_secs(10));
    let nri = builder.start().await.unwrap();
    let Some(mut old) = go_plugin("plugin", &place, "10", &[]) else {
        return;
    };
    until_active(&nri, "10-go").await;
    let (stop, made) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(nri.clone(), number, stop.clone(), made.clone())))
        .collect();
    let more = |by: usize| {
        let (made, to) = (made.clone(), made.load(Ordering::SeqCst) + by);
        async move { until("containers are made", || made.load(Ordering::SeqCst) >= to).await }
    };
    more(100).await;
    let new = go_plugin("plugin", &place, "10", &[]).unwrap();
    until_shadowed(&nri).await;
    assert_eq!(
        common::there(&nri)[0].pid,
        Some(new.pid()),
        "the newer is called"
    );
    more(100).await;
    old.kill();
    until("the older one has ended", || {
        states(&nri) == [PluginState::Active]
    })
    .await;
    more(50).await;
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("no creation failed");
    }

    let made = made.load(Ordering::SeqCst);
    let reported = || {
        let mut reported: BTreeMap<String, usize> = BTreeMap::new();
        for line in old.lines().into_iter().chain(new.lines()) {
            if line.contains("Container ") {
                *reported.entry(line).or_default() += 1;
            }
        }
        reported
    };
    until("all is printed", || reported().len() >= 6 * made).await;
    let reported = reported();
    assert_eq!(
        reported.len(),
        6 * made,
        "six events each, and none is missing"
    );
    let twice: Vec<_> = reported.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "sent twice: {twice:?}");
    for instance in [&old, &new] {
        let lines = instance.lines();
        assert!(lines.iter().filter(|l| l.starts_with("Create")).count() >= 50);
        assert_eq!(
            lines
                .iter()
                .filter(|l| l.starts_with("Synchronize"))
                .count(),
            1
        );
    }
    assert_eq!(registered(&place), 2, "no plugin reconnected");
    assert!(place.seen.saw("10-go", |e| *e == PluginEvent::Shadowed));
}

#[tokio::test]
async fn the_older_instance_is_told_all_again_and_called_when_the_newer_goes() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let (old, new) = (Record::default(), Record::default());
    let old_stub = plugin(&place, old.handlers()).register().await.unwrap();
    until_active(&nri, "10-go").await;
    let new_stub = plugin(&place, new.handlers()).register().await.unwrap();
    until_shadowed(&nri).await;
    nri.run_pod_sandbox(pod("p1")).await.unwrap();
    let runtime = old_stub.runtime();
    let asked = runtime.update_containers(Vec::new(), Vec::new());
    let refused = asked.await.expect_err("it is not called").to_string();
    assert!(refused.contains("a newer instance"), "{refused}");
    drop(new_stub);
    until("the older is called again", || {
        states(&nri) == [PluginState::Active]
    })
    .await;
    nri.run_pod_sandbox(pod("p2")).await.unwrap();
    let asked = runtime.update_containers(Vec::new(), Vec::new());
    asked.await.expect("it may ask again");
    assert_eq!(
        old.lines(),
        ["Synchronize", "Synchronize", "RunPodSandbox p2"]
    );
    assert_eq!(new.lines(), ["Synchronize", "RunPodSandbox p1"]);
}

#[tokio::test]
async fn the_newer_instance_has_the_place_when_the_older_goes_while_it_is_synchronised() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let old = Record::default();
    let old_stub = plugin(&place, old.handlers()).register().await.unwrap();
    until_active(&nri, "10-go").await;
    let (gate, new) = (Arc::new(Semaphore::new(0)), Record::default());
    let asked = Arc::new(AtomicBool::new(false));
    let (blocks, begun) = (gate.clone(), asked.clone());
    let slow = new.handlers().synchronize(move |_, _| {
        let gate = blocks.clone();
        begun.store(true, Ordering::SeqCst);
        async move {
            let _open = gate.acquire().await;
            Ok(Vec::new())
        }
    });
    let mut slow = plugin(&place, slow);
    let _new_stub = slow.register().await.unwrap();
    until("it handles the event", || asked.load(Ordering::SeqCst)).await;
    assert_eq!(states(&nri), [PluginState::Active]);
    drop(old_stub);
    until("the older one has ended", || {
        place
            .seen
            .saw("10-go", |e| matches!(e, PluginEvent::Closed { .. }))
    })
    .await;
    let run = {
        let nri = nri.clone();
        tokio::spawn(async move { nri.run_pod_sandbox(pod("p")).await })
    };
    gate.add_permits(1);
    run.await.unwrap().unwrap();
    until_active(&nri, "10-go").await;
    assert_eq!(new.lines(), ["RunPodSandbox p"]);
    assert_eq!(old.lines(), ["Synchronize"]);
}

#[tokio::test]
async fn two_plugins_that_reconnect_do_not_replace_each_other_for_ever() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let (a, b) = (Record::default(), Record::default());
    let run = |record: &Record| {
        let stub = plugin(&place, record.handlers()).reconnect(true);
        tokio::spawn(stub.run())
    };
    let first = run(&a);
    until_active(&nri, "10-go").await;
    let second = run(&b);
    until_shadowed(&nri).await;
    for n in 0..200 {
        nri.run_pod_sandbox(pod(&format!("p{n}"))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(registered(&place), 2);
    assert_eq!((a.lines().len(), b.lines().len()), (1, 201));
    first.abort();
    second.abort();
}
