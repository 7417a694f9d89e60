//! Plugins that connect during operations: the cut between list and events, waiting, lists in
//! parts, replacement, required and must-run plugins, and requests of plugins on their own
//! initiative.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{
    Place, Record, active, container, plugin, pod, registered, until, until_active, update,
};
use nri::{Adaptation, Handlers, Outcome, Snapshot, proto::*};
use proptest::prelude::*;

/// A plugin whose Synchronize waits until it is released.
struct Gate {
    entered: Arc<AtomicUsize>,
    release: Arc<tokio::sync::Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self {
            entered: Arc::default(),
            release: Arc::new(tokio::sync::Semaphore::new(0)),
        }
    }

    /// Adds a Synchronize handler that records the list, then waits.
    fn on(&self, record: &Record, handlers: Handlers) -> Handlers {
        let (entered, release, record) =
            (self.entered.clone(), self.release.clone(), record.clone());
        handlers.synchronize(move |pods, containers| {
            let (release, record) = (release.clone(), record.clone());
            entered.fetch_add(1, Ordering::SeqCst);
            let pods: Vec<_> = pods.into_iter().map(|p| p.id).collect();
            let containers: Vec<_> = containers.into_iter().map(|c| c.id).collect();
            record.add("Synchronize", &pods.join(","), &containers.join(","));
            async move {
                release.acquire().await.unwrap().forget();
                Ok(Vec::new())
            }
        })
    }

    async fn entered(&self) {
        until("the plugin is being synchronised", || {
            self.entered.load(Ordering::SeqCst) > 0
        })
        .await;
    }

    fn open(&self) {
        self.release.add_permits(1);
    }
}

#[tokio::test]
async fn events_wait_for_a_joining_plugin_in_their_order() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let (gate, record) = (Gate::new(), Record::default());
    let mut builder = plugin(&place, "10-joins", gate.on(&record, record.handlers()));
    let stub = tokio::spawn(async move { builder.register().await.unwrap() });
    gate.entered().await;

    // Events without an answer do not wait. Others wait until the plugin is active.
    let reported = nri.stop_pod_sandbox(pod("old")).await;
    assert_eq!(reported.deliveries[0].outcome, Outcome::Joining);
    let create = {
        let nri = nri.clone();
        tokio::spawn(async move {
            let turn = nri.turn(Event::CreateContainer).await;
            nri.create_container(&turn, pod("p"), container("c", "p"))
                .await
                .unwrap()
        })
    };
    // A pending turn means that the creation was dispatched and waits for the plugin.
    until("the creation waits in its turn", || {
        let turn = std::pin::pin!(nri.turn(Event::CreateContainer));
        let mut nobody = std::task::Context::from_waker(std::task::Waker::noop());
        turn.poll(&mut nobody).is_pending()
    })
    .await;
    assert!(!create.is_finished());
    assert_eq!(record.lines(), ["Synchronize"]);
    gate.open();
    let created = create.await.unwrap();
    assert_eq!(created.deliveries[0].outcome, Outcome::Answered);
    until("all events have arrived", || record.lines().len() == 3).await;
    assert_eq!(
        record.lines(),
        ["Synchronize", "StopPodSandbox old", "CreateContainer p c"]
    );
    drop(stub.await);
}

#[tokio::test]
async fn a_dispatch_under_way_also_reaches_a_plugin_that_joins_behind_its_back() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    // 50 blocks the event; meanwhile 10 joins, whose place in the order has passed.
    let hold = Arc::new(tokio::sync::Semaphore::new(0));
    let held = hold.clone();
    let (entered, in_it) = tokio::sync::oneshot::channel();
    let entered = Arc::new(std::sync::Mutex::new(Some(entered)));
    let slow = Handlers::new().run_pod_sandbox(move |_| {
        let (held, entered) = (held.clone(), entered.clone());
        async move {
            if let Some(entered) = entered.lock().unwrap().take() {
                entered.send(()).unwrap();
            }
            held.acquire().await.unwrap().forget();
            Ok(())
        }
    });
    let _slow = active(&nri, &place, "50-slow", slow).await;
    place.runtime.all.lock().unwrap().pods.push(pod("p"));
    let run = {
        let nri = nri.clone();
        tokio::spawn(async move { nri.run_pod_sandbox(pod("p")).await.unwrap() })
    };
    in_it.await.unwrap();
    let record = Record::default();
    let _late = active(&nri, &place, "10-late", record.handlers()).await;
    assert_eq!(
        record.lines(),
        ["Synchronize"],
        "the pod is not in the list: its hook is not done"
    );
    hold.add_permits(1);
    run.await.unwrap();
    assert_eq!(record.lines(), ["Synchronize", "RunPodSandbox p"]);
}

#[tokio::test]
async fn an_object_being_removed_is_neither_listed_nor_told_of() {
    let place = Place::new();
    *place.runtime.all.lock().unwrap() = Snapshot {
        pods: vec![pod("p")],
        containers: vec![container("c", "p")],
    };
    let nri = place.builder().start().await.unwrap();
    nri.remove_container(pod("p"), container("c", "p")).await;
    // The runtime still has the container for a moment.
    let record = Record::default();
    let _stub = active(&nri, &place, "10-a", record.handlers()).await;
    assert_eq!(record.lines(), ["Synchronize p"]);
}

#[tokio::test]
async fn a_long_list_comes_in_parts_and_updates_with_the_last() {
    let place = Place::new();
    let big = |n: usize| PodSandbox {
        annotations: BTreeMap::from([("pad".into(), "x".repeat(300_000))]),
        ..pod(&format!("p{n}"))
    };
    let huge = PodSandbox {
        annotations: BTreeMap::from([("pad".into(), "x".repeat(5 << 20))]),
        ..pod("huge")
    };
    let mut pods: Vec<_> = (0..30).map(big).collect();
    pods.push(huge);
    *place.runtime.all.lock().unwrap() = Snapshot {
        pods,
        containers: vec![container("c", "p1")],
    };
    let nri = place.builder().start().await.unwrap();
    let listed = Arc::new(Mutex::new(Vec::new()));
    let into = listed.clone();
    let handlers = Handlers::new()
        .run_pod_sandbox(|_| async { Ok(()) })
        .synchronize(move |pods, containers| {
            let lengths = (pods.len(), containers.len());
            into.lock()
                .unwrap()
                .push((lengths, nri::left_out().to_vec()));
            async { Ok(vec![update("c")]) }
        });
    let _stub = active(&nri, &place, "10-a", handlers).await;
    // One call of the handler; an object that does not fit in a message lacks its longest field.
    let left_out = vec!["pod huge: annotations".to_owned()];
    assert_eq!(*listed.lock().unwrap(), [((31, 1), left_out)]);
    assert_eq!(place.runtime.updates.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn two_plugins_may_have_the_same_id_where_the_runtime_says_so() {
    let place = Place::new();
    let builder = place.builder().replace_same_name(false);
    let nri = builder.start().await.unwrap();
    let (a, b) = (Record::default(), Record::default());
    let _a = registered(&place, "10-a", a.handlers()).await;
    let _b = registered(&place, "10-a", b.handlers()).await;
    until("both are in", || common::there(&nri).len() == 2).await;
    until_active(&nri, "10-a").await;
    nri.run_pod_sandbox(pod("p")).await.unwrap();
    assert_eq!((a.lines().len(), b.lines().len()), (2, 2));
}

#[tokio::test]
async fn plugins_that_come_and_go_leave_no_task_and_no_descriptor() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let metrics = tokio::runtime::Handle::current().metrics();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let come_and_go = async |id: &str| {
        let stub = active(&nri, &place, id, Record::default().handlers()).await;
        nri.run_pod_sandbox(pod("p")).await.unwrap();
        drop(stub);
        until("it has ended", || common::there(&nri).is_empty()).await;
    };
    come_and_go("10-first").await;
    until("its tasks end", || metrics.num_alive_tasks() <= 2).await;
    let (tasks, open) = (metrics.num_alive_tasks(), descriptors());
    for n in 0..50 {
        come_and_go(&format!("10-p{n}")).await;
    }
    until("their tasks end", || metrics.num_alive_tasks() <= tasks).await;
    // Other tests in this process open descriptors, too; a leak would be a hundred.
    until("their descriptors are closed", || descriptors() < open + 50).await;
}

/// Creates containers in parallel while plugins join. A plugin must learn each container either
/// from its list or from CreateContainer, and must get RemoveContainer exactly if it learned the
/// container.
async fn each_container_is_learnt_once(delays: Vec<u64>, joins: Vec<u64>) {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let all: BTreeSet<String> = (0..delays.len()).map(|n| format!("c{n}")).collect();
    let creations: Vec<_> = delays
        .into_iter()
        .enumerate()
        .map(|(n, delay)| {
            let (nri, runtime) = (nri.clone(), place.runtime.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_micros(delay)).await;
                create(&nri, &runtime, &format!("c{n}")).await;
            })
        })
        .collect();
    let mut plugins = Vec::new();
    for (n, delay) in joins.into_iter().enumerate() {
        tokio::time::sleep(Duration::from_micros(delay)).await;
        let record = Record::default();
        // Indexes before and after each other in the order.
        let id = format!("{}-p", 90 - n * 10);
        let stub = registered(&place, &id, record.handlers()).await;
        plugins.push((id, record, stub));
    }
    for creation in creations {
        creation.await.unwrap();
    }
    for (id, record, _stub) in &plugins {
        until_active(&nri, id).await;
        let mut learnt = Vec::new();
        for line in record.lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words.as_slice() {
                ["Synchronize", "", containers] => {
                    learnt.extend(containers.split(',').map(str::to_owned))
                }
                ["CreateContainer", _, container] => learnt.push((*container).to_owned()),
                _ => {}
            }
        }
        let once: BTreeSet<_> = learnt.iter().cloned().collect();
        assert_eq!(
            learnt.len(),
            once.len(),
            "{id} learnt of one twice: {:?}",
            record.lines()
        );
        assert_eq!(once, all, "{id} never learnt of one");
    }
}

async fn create(nri: &Adaptation, runtime: &common::Runtime, id: &str) {
    // Added to the list before the event: the library omits it until the event has ended.
    runtime
        .all
        .lock()
        .unwrap()
        .containers
        .push(container(id, "p"));
    let turn = nri.turn(Event::CreateContainer).await;
    nri.create_container(&turn, pod("p"), container(id, "p"))
        .await
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn each_container_is_in_exactly_one_of_list_and_event(
        delays in prop::collection::vec(0u64..20_000, 100),
        joins in prop::collection::vec(0u64..8_000, 1..4),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(each_container_is_learnt_once(delays, joins));
    }
}
