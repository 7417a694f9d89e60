//! Plugins that fail, hang and reconnect: each operation ends, none waits for another pod's plugin,
//! and each plugin gets each event exactly once. The clock is paused, so that seconds take no real
//! time.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{Place, Record, active, container, plugin, pod, registered, there, until_active};
use nri::{
    Adaptation, Handlers, PluginEvent, PluginId, PluginSettings, PluginState,
    policy::{OnTimeout, PluginPolicy},
    proto::*,
};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn settings(id: &str, set: impl FnOnce(&mut PluginPolicy)) -> BTreeMap<PluginId, PluginSettings> {
    let mut settings = PluginSettings::default();
    set(&mut settings.policy);
    BTreeMap::from([(id.parse().unwrap(), settings)])
}

/// Runs a plugin that closes its connection in CreateContainer, without an answer, and reconnects
/// after a moment. `asked` counts the calls.
async fn comes_back(place: &Place, id: &'static str, asked: Arc<AtomicUsize>) -> ! {
    loop {
        let (hang_up, mut hung_up) = tokio::sync::mpsc::channel(1);
        let count = asked.clone();
        let handlers = Handlers::new().create_container(move |_, _| {
            let (hang_up, count) = (hang_up.clone(), count.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                sleep(SECOND / 10).await;
                let _ = hang_up.send(()).await;
                std::future::pending().await
            }
        });
        if let Ok(stub) = plugin(place, id, handlers).register().await {
            hung_up.recv().await;
            drop(stub);
        }
        sleep(SECOND / 50).await;
    }
}

async fn create(nri: &Adaptation, id: &str) -> Result<(), nri::Refused> {
    let turn = nri.turn(Event::CreateContainer).await;
    let created = nri.create_container(&turn, pod("p"), container(id, "p"));
    created.await.map(drop)
}

/// Returns the number of calls of the plugin for the event.
fn calls(place: &Place, id: &str, event: Event) -> usize {
    let all = place.seen.deliveries.lock().unwrap();
    let is_call = |d: &&nri::Delivery| {
        let called = !matches!(
            d.outcome,
            nri::Outcome::Absent | nri::Outcome::NotSubscribed | nri::Outcome::Joining
        );
        d.plugin.to_string() == id && d.event == event && called
    };
    all.iter().filter(is_call).count()
}

fn closed(place: &Place, id: &str) -> usize {
    let all = place.seen.plugins.lock().unwrap();
    let is = |(name, event): &&(String, PluginEvent)| {
        name == id && matches!(event, PluginEvent::Closed { .. })
    };
    all.iter().filter(is).count()
}

fn is_active(nri: &Adaptation, id: &str) -> bool {
    let is = |p: &nri::PluginInfo| p.id.to_string() == id && p.state == PluginState::Active;
    there(nri).iter().any(is)
}

#[tokio::test(start_paused = true)]
async fn two_plugins_that_fail_at_one_container_and_come_back_are_asked_once_each() {
    let place = Arc::new(Place::new());
    let nri = place.builder().start().await.unwrap();
    let asked: [Arc<AtomicUsize>; 2] = Default::default();
    for (id, asked) in ["10-a", "20-b"].into_iter().zip(&asked) {
        let (place, asked) = (place.clone(), asked.clone());
        tokio::spawn(async move { comes_back(&place, id, asked).await });
    }
    until_active(&nri, "10-a").await;
    until_active(&nri, "20-b").await;
    let created = timeout(30 * SECOND, create(&nri, "c")).await;
    created.expect("the dispatch ends").unwrap();
    let counts = asked.each_ref().map(|n| n.load(Ordering::SeqCst));
    assert_eq!(counts, [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_answered_and_came_back_meanwhile_has_the_container_in_its_list() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let first = Record::default();
    let stub = registered(&place, "10-guard", first.handlers()).await;
    let slow = Handlers::new().create_container(|_, _| async {
        sleep(SECOND).await;
        Ok((None, Vec::new()))
    });
    let _slow = registered(&place, "20-slow", slow).await;
    until_active(&nri, "10-guard").await;
    until_active(&nri, "20-slow").await;
    let all = &place.runtime.all;
    all.lock().unwrap().pods.push(pod("p"));
    nri.run_pod_sandbox(pod("p")).await.unwrap();
    all.lock().unwrap().containers.push(container("c", "p"));
    let creation = {
        let nri = nri.clone();
        tokio::spawn(async move { create(&nri, "c").await })
    };
    sleep(SECOND / 4).await;
    assert!(first.lines().contains(&"CreateContainer p c".to_owned()));
    drop(stub);
    let second = Record::default();
    let _stub = registered(&place, "10-guard", second.handlers()).await;
    creation.await.unwrap().unwrap();
    until_active(&nri, "10-guard").await;
    assert_eq!(second.lines(), ["Synchronize p c"]);
}

#[tokio::test(start_paused = true)]
async fn no_more_than_eight_plugins_join_behind_the_back_of_one_dispatch() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let slow = || {
        Handlers::new().run_pod_sandbox(|_| async {
            sleep(SECOND).await;
            Ok(())
        })
    };
    let _first = active(&nri, &place, "00-slow", slow()).await;
    let run = {
        let nri = nri.clone();
        tokio::spawn(async move { nri.run_pod_sandbox(pod("p")).await })
    };
    sleep(SECOND / 4).await;
    let ids: Vec<_> = (10..30).map(|n| format!("{n}-late")).collect();
    let mut late = Vec::new();
    for id in &ids {
        late.push(registered(&place, id, slow()).await);
    }
    let reported = run.await.unwrap().unwrap();
    assert_eq!(reported.deliveries.len(), 9);
    for id in &ids {
        until_active(&nri, id).await;
    }
}

/// A must-run plugin with kept events of this number of pods.
async fn with_kept(place: &Place, set: impl FnOnce(&mut PluginPolicy), pods: usize) -> Adaptation {
    let must_run = settings("10-keeps", |policy| {
        policy.must_run = true;
        set(policy);
    });
    let nri = place.builder().plugins(must_run).start().await.unwrap();
    for n in 0..pods {
        nri.stop_pod_sandbox(pod(&format!("kept-{n}"))).await;
    }
    nri
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_for_a_slow_plugin_delays_other_pods_by_one_event_at_most() {
    let place = Place::new();
    let nri = with_kept(&place, |_| {}, 60).await;
    let record = Record::default();
    let into = record.clone();
    let handlers = record.handlers().stop_pod_sandbox(move |pod| {
        into.add("StopPodSandbox", &pod.id, "");
        async {
            sleep(SECOND * 3 / 2).await;
            Ok(())
        }
    });
    let _stub = registered(&place, "10-keeps", handlers).await;
    let begun = Instant::now();
    while nri.plugins()[0].backlog > 0 {
        let asked = Instant::now();
        nri.run_pod_sandbox(pod("other")).await.unwrap();
        assert!(asked.elapsed() < 2 * SECOND, "{:?}", asked.elapsed());
        sleep(SECOND / 7).await;
        assert!(
            begun.elapsed() < 600 * SECOND,
            "it is never sent everything"
        );
    }
    let stops: Vec<_> = record.lines();
    let stops = stops.iter().filter(|line| line.starts_with("Stop"));
    let expected: Vec<_> = (0..60)
        .map(|n| format!("StopPodSandbox kept-{n}"))
        .collect();
    assert!(stops.eq(&expected), "each once, in order");
}

#[tokio::test(start_paused = true)]
async fn a_kept_event_comes_before_a_new_one_of_its_object() {
    let place = Place::new();
    let nri = with_kept(&place, |_| {}, 9).await;
    let record = Record::default();
    let into = record.clone();
    let handlers = record.handlers().stop_pod_sandbox(move |pod| {
        into.add("StopPodSandbox", &pod.id, "");
        async {
            sleep(SECOND).await;
            Ok(())
        }
    });
    let _stub = active(&nri, &place, "10-keeps", handlers).await;
    nri.remove_pod_sandbox(pod("kept-8")).await;
    let lines = record.lines();
    let last: Vec<_> = lines.iter().rev().take(2).rev().collect();
    assert_eq!(last, ["StopPodSandbox kept-8", "RemovePodSandbox kept-8"]);
    assert!(
        nri.plugins()[0].backlog > 5,
        "the others were not waited for"
    );
}

#[tokio::test(start_paused = true)]
async fn a_kept_event_at_which_a_plugin_fails_twice_more_is_given_up_and_it_comes_in() {
    let place = Arc::new(Place::new());
    let nri = with_kept(&place, |policy| policy.required = true, 2).await;
    let again = {
        let place = place.clone();
        tokio::spawn(async move {
            loop {
                let handlers = Record::default().handlers();
                let handlers = handlers.stop_pod_sandbox(|pod| async move {
                    match pod.id.as_str() {
                        "kept-0" => std::future::pending().await,
                        _ => Ok(()),
                    }
                });
                if let Ok(stub) = plugin(&place, "10-keeps", handlers).register().await {
                    let _ended = stub.wait().await;
                }
                sleep(SECOND / 10).await;
            }
        })
    };
    sleep(20 * SECOND).await;
    let dropped = PluginEvent::Dropped {
        event: Event::StopPodSandbox,
    };
    assert!(place.seen.saw("10-keeps", |event| *event == dropped));
    assert_eq!(
        (closed(&place, "10-keeps"), nri.plugins()[0].backlog),
        (2, 0)
    );
    nri.run_pod_sandbox(pod("p")).await.unwrap();
    again.abort();
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_container_is_sent_after_its_remove() {
    let place = Place::new();
    let keep = |policy: &mut PluginPolicy| policy.on_timeout = Some(OnTimeout::Keep);
    let nri = with_kept(&place, keep, 0).await;
    let slow = Record::default();
    let handlers = slow.handlers().stop_container(|_, _| async {
        sleep(3 * SECOND).await;
        Ok(Vec::new())
    });
    let stub = active(&nri, &place, "10-keeps", handlers).await;
    let turn = nri.turn(Event::StopContainer).await;
    nri.stop_container(&turn, pod("p"), container("c", "p"))
        .await;
    drop(turn);
    assert_eq!(nri.plugins()[0].backlog, 1, "it was late");
    nri.remove_container(pod("p"), container("c", "p")).await;
    assert_eq!(nri.plugins()[0].backlog, 0);
    drop(stub);
    let next = Record::default();
    let _stub = active(&nri, &place, "10-keeps", next.handlers()).await;
    sleep(5 * SECOND).await;
    assert_eq!(next.lines(), ["Synchronize"]);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_acknowledges() {
    let place = Place::new();
    let keep = |policy: &mut PluginPolicy| policy.on_timeout = Some(OnTimeout::Keep);
    let nri = with_kept(&place, keep, 0).await;
    let handlers = Handlers::new().stop_pod_sandbox(|_| async {
        sleep(3 * SECOND).await;
        Ok(())
    });
    let _stub = active(&nri, &place, "10-keeps", handlers).await;
    nri.stop_pod_sandbox(pod("p")).await;
    assert_eq!(nri.plugins()[0].backlog, 1);
    sleep(2 * SECOND).await;
    assert_eq!(nri.plugins()[0].backlog, 0);
    assert_eq!(calls(&place, "10-keeps", Event::StopPodSandbox), 1);
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_is_answered_after_the_operations_own_time_is_undone_once() {
    // The answer arrives after 5 s. The runtime's own Stop and Remove arrive while the plugin is
    // working, or after its timeout.
    for (limit, pause) in [(10, 0), (3, 3)] {
        let place = Place::new();
        let record = Record::default();
        let handlers = record.handlers().create_container(|_, _| async {
            sleep(5 * SECOND).await;
            Ok((None, Vec::new()))
        });
        let skip = |policy: &mut PluginPolicy| policy.on_timeout = Some(OnTimeout::Skip);
        let builder = place.builder().request_timeout(limit * SECOND);
        let builder = builder
            .operation_timeout(SECOND)
            .plugins(settings("10-slow", skip));
        let nri = builder.start().await.unwrap();
        let _stub = plugin(&place, "10-slow", handlers).start().await.unwrap();
        until_active(&nri, "10-slow").await;
        create(&nri, "c").await.unwrap_err();
        sleep(pause * SECOND).await;
        let turn = nri.turn(Event::StopContainer).await;
        nri.stop_container(&turn, pod("p"), container("c", "p"))
            .await;
        drop(turn);
        nri.remove_container(pod("p"), container("c", "p")).await;
        sleep(5 * SECOND).await;
        nri.stop_pod_sandbox(pod("p")).await;
        let heard = [
            "Synchronize",
            "StopContainer p c",
            "RemoveContainer p c",
            "StopPodSandbox p",
        ];
        assert_eq!(record.lines(), heard, "with a limit of {limit} s");
    }
}

/// Handlers that take a second for Synchronize.
fn slow_to_join(handlers: Handlers) -> Handlers {
    handlers.synchronize(|_, _| async {
        sleep(SECOND).await;
        Ok(Vec::new())
    })
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_hears_more_than_the_one_it_replaces_is_told_the_end_of_what_it_was_told()
{
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let older = Handlers::new().create_container(|_, _| async { Ok((None, Vec::new())) });
    let _older = active(&nri, &place, "10-go", older).await;
    place.runtime.all.lock().unwrap().pods.push(pod("p"));
    nri.run_pod_sandbox(pod("p")).await.unwrap();
    let record = Record::default();
    let newer = slow_to_join(record.handlers());
    let mut joining = plugin(&place, "10-go", newer);
    let joining = tokio::spawn(async move { joining.register().await });
    sleep(SECOND / 2).await;
    nri.stop_pod_sandbox(pod("p")).await;
    nri.remove_pod_sandbox(pod("p")).await;
    let _newer = joining.await.unwrap().unwrap();
    sleep(3 * SECOND).await;
    assert_eq!(record.lines(), ["StopPodSandbox p", "RemovePodSandbox p"]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_hears_less_than_the_one_it_replaces_is_not_called_for_the_rest() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let older = Record::default();
    let _older = active(&nri, &place, "10-go", older.handlers()).await;
    let newer = Handlers::new().create_container(|_, _| async { Ok((None, Vec::new())) });
    let mut joining = plugin(&place, "10-go", slow_to_join(newer));
    let joining = tokio::spawn(async move { joining.register().await });
    sleep(SECOND / 2).await;
    nri.run_pod_sandbox(pod("p")).await.unwrap();
    nri.stop_pod_sandbox(pod("p")).await;
    let _newer = joining.await.unwrap().unwrap();
    sleep(3 * SECOND).await;
    assert_eq!(calls(&place, "10-go", Event::RunPodSandbox), 0);
    assert_eq!(calls(&place, "10-go", Event::StopPodSandbox), 0);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_ends_while_pods_start_all_the_time() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let slow = Handlers::new().run_pod_sandbox(|_| async {
        sleep(SECOND / 5).await;
        Ok(())
    });
    let _slow = registered(&place, "90-slow", slow).await;
    let hears = || Handlers::new().create_container(|_, _| async { Ok((None, Vec::new())) });
    let _older = registered(&place, "10-go", hears()).await;
    until_active(&nri, "90-slow").await;
    until_active(&nri, "10-go").await;
    for client in 0..4 {
        let nri = nri.clone();
        tokio::spawn(async move {
            sleep(SECOND / 20 * client).await;
            for n in 0.. {
                let id = format!("p{client}-{n}");
                nri.run_pod_sandbox(pod(&id)).await.unwrap();
            }
        });
    }
    sleep(SECOND).await;
    let _newer = registered(&place, "10-go", hears()).await;
    sleep(SECOND).await;
    let replaced = |event: &PluginEvent| {
        matches!(event, PluginEvent::Shadowed)
            || matches!(event, PluginEvent::Closed { reason } if reason.starts_with("instance-replaced"))
    };
    assert!(place.seen.saw("10-go", replaced));
    assert!(is_active(&nri, "10-go"));
}

#[tokio::test(start_paused = true)]
async fn a_join_is_waited_for_by_those_who_need_it_and_not_in_the_turn() {
    let place = Place::new();
    let builder = place.builder().sync_timeout(10 * SECOND);
    let nri = builder.start().await.unwrap();
    let record = Record::default();
    let handlers = record
        .handlers()
        .stop_container(|_, _| async { Ok(Vec::new()) });
    let _other = active(&nri, &place, "20-other", handlers).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let asked = order.clone();
    let handlers = Handlers::new()
        .synchronize(|_, _| async {
            sleep(8 * SECOND).await;
            Ok(Vec::new())
        })
        .create_container(move |_, _| {
            asked.lock().unwrap().push("asked");
            async { Ok((None, Vec::new())) }
        });
    let mut joining = plugin(&place, "10-slow", handlers);
    let joining = tokio::spawn(async move { joining.register().await });
    sleep(SECOND).await;
    let creation = {
        let nri = nri.clone();
        tokio::spawn(async move { create(&nri, "c").await })
    };
    sleep(SECOND).await;
    let begun = Instant::now();
    let turn = nri.turn(Event::StopContainer).await;
    nri.stop_container(&turn, pod("q"), container("d", "q"))
        .await;
    drop(turn);
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    order.lock().unwrap().push("stopped");
    creation.await.unwrap().unwrap();
    let _joined = joining.await.unwrap().unwrap();
    assert_eq!(*order.lock().unwrap(), ["stopped", "asked"]);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_cannot_be_synchronised_again_and_again_is_not_waited_for() {
    let place = Arc::new(Place::new());
    let nri = place.builder().start().await.unwrap();
    let hangs = Arc::new(Mutex::new(true));
    let answers = hangs.clone();
    let again = {
        let place = place.clone();
        tokio::spawn(async move {
            loop {
                let hangs = *answers.lock().unwrap();
                let handlers = Handlers::new()
                    .create_container(|_, _| async { Ok((None, Vec::new())) })
                    .synchronize(move |_, _| async move {
                        if hangs {
                            std::future::pending().await
                        } else {
                            Ok(Vec::new())
                        }
                    });
                if let Ok(stub) = plugin(&place, "10-hangs", handlers).register().await {
                    let _ended = stub.wait().await;
                }
                sleep(SECOND / 10).await;
            }
        })
    };
    let mut slow = 0;
    for n in 0..200 {
        let begun = Instant::now();
        create(&nri, &format!("c{n}")).await.unwrap();
        slow += usize::from(begun.elapsed() > SECOND);
        sleep(SECOND).await;
    }
    assert!((1..=2).contains(&slow), "{slow} waited");
    *hangs.lock().unwrap() = false;
    // A pause of a minute, an attempt that still hangs, and one more pause.
    sleep(140 * SECOND).await;
    assert!(is_active(&nri, "10-hangs"), "it comes in when it can");
    again.abort();
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_an_event_did_not_wait_for_joins_again_and_knows_of_it() {
    let place = Arc::new(Place::new());
    let builder = place.builder().sync_timeout(10 * SECOND);
    let nri = builder.start().await.unwrap();
    let lists = Arc::new(Mutex::new(Vec::new()));
    let into = lists.clone();
    let again = {
        let place = place.clone();
        tokio::spawn(async move {
            for attempt in 0.. {
                let into = into.clone();
                let handlers = Handlers::new()
                    .create_container(|_, _| async { Ok((None, Vec::new())) })
                    .synchronize(move |_, containers| {
                        let into = into.clone();
                        async move {
                            match attempt {
                                0 | 1 => std::future::pending().await,
                                2 => sleep(5 * SECOND).await,
                                _ => {}
                            }
                            into.lock().unwrap().push(containers.len());
                            Ok(Vec::new())
                        }
                    });
                if let Ok(stub) = plugin(&place, "10-slow", handlers).register().await {
                    let _ended = stub.wait().await;
                }
                sleep(SECOND / 10).await;
            }
        })
    };
    // Two attempts have had ten seconds each, and the third has begun.
    sleep(23 * SECOND).await;
    let all = &place.runtime.all;
    all.lock().unwrap().pods.push(pod("p"));
    nri.run_pod_sandbox(pod("p")).await.unwrap();
    all.lock().unwrap().containers.push(container("c", "p"));
    let begun = Instant::now();
    create(&nri, "c").await.unwrap();
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    sleep(20 * SECOND).await;
    assert!(is_active(&nri, "10-slow"));
    assert_eq!(
        *lists.lock().unwrap(),
        [0, 1],
        "the second time with the container"
    );
    again.abort();
}
