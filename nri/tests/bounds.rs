//! Limits for connecting plugins: file descriptors, places of other plugins, and the time of
//! updates. A separate binary, because it lowers the limit of open files.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::{Place, Record, active, plugin, until, until_active, update};
use nri::{
    BoxFuture, FailedUpdate, PluginEvent, PluginId, PluginSettings, PluginState, Requester,
    Snapshot, Source, proto::ContainerUpdate, stub::Stub,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::UnixStream;

/// The limit of open files, and the resulting limit of registered connections.
const FILES: u64 = 512;
const PLACES: usize = 64;

/// Runs one test at a time, each with its own runtime: the tests count descriptors and tasks.
fn alone(test: impl Future<Output = ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(test);
}

fn limit_open_files() {
    let limit = Rlimit {
        current: Some(FILES),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

async fn join(place: &Place, id: &str) -> Result<Stub, nri::stub::StubError> {
    plugin(place, id, Record::default().handlers())
        .register()
        .await
}

#[test]
fn plugins_that_register_without_end_leave_descriptors_and_a_place_for_one_with_a_table() {
    alone(async {
        limit_open_files();
        let place = Place::new();
        let named = BTreeMap::from([("10-named".parse().unwrap(), PluginSettings::default())]);
        let nri = place.builder().plugins(named).start().await.unwrap();
        let before = open_files();
        let mut stubs = Vec::new();
        let refused = loop {
            match join(&place, &format!("10-a{}", stubs.len())).await {
                Ok(stub) => stubs.push(stub),
                Err(refused) => break refused.to_string(),
            }
        };
        assert_eq!(stubs.len(), PLACES, "{refused}");
        assert!(refused.contains("64 plugins are connected"), "{refused}");
        // The count includes the plugin's end of each connection.
        let limit = usize::try_from(FILES).unwrap();
        assert!(open_files() < limit / 2, "{}", open_files());
        stubs.push(join(&place, "10-named").await.unwrap());
        until_active(&nri, "10-named").await;
        drop(stubs);
        until("all have left", || open_files() <= before).await;
        join(&place, "10-again").await.unwrap();
    });
}

#[test]
fn one_plugin_that_connects_without_end_has_eight_shadows_and_the_newest_is_called() {
    alone(async {
        let place = Place::new();
        let nri = place.builder().start().await.unwrap();
        let mut stubs = Vec::new();
        for _ in 0..30 {
            stubs.push(join(&place, "10-twin").await.unwrap());
            until("the newest is called", || {
                let seen = place.seen.plugins.lock().unwrap();
                let joined = |e: &PluginEvent| matches!(e, PluginEvent::Synchronized { .. });
                seen.iter().filter(|(_, e)| joined(e)).count() == stubs.len()
            })
            .await;
        }
        until("the oldest are closed", || {
        let seen = place.seen.plugins.lock().unwrap();
        let replaced = |e: &PluginEvent| matches!(e, PluginEvent::Closed { reason } if reason.starts_with("instance-replaced"));
        seen.iter().filter(|(_, e)| replaced(e)).count() == 21
    })
    .await;
        let there = common::there(&nri);
        let are = |state| there.iter().filter(|p| p.state == state).count();
        assert_eq!(
            (are(PluginState::Active), are(PluginState::Shadowed)),
            (1, 8)
        );
    });
}

#[test]
fn two_thousand_connections_of_a_process_are_taken_at_a_bounded_rate_and_leave_nothing() {
    alone(async {
        let own = rustix::process::geteuid().as_raw();
        for allowed in [own, 4_000_000_000] {
            let place = Place::new();
            let settings = nri::Settings {
                socket: Some(place.socket()),
                plugin_dir: None,
                allowed_uids: vec![allowed],
                ..Default::default()
            };
            let nri = place.builder().settings(settings).start().await.unwrap();
            let before = (open_files(), tasks());
            let begun = Instant::now();
            for _ in 0..2000 {
                drop(UnixStream::connect(place.socket()).await.unwrap());
            }
            let reports = |is_of_rate: bool| {
                let seen = place.seen.plugins.lock().unwrap();
                let text = "more than 200 connections per second of process";
                let of_rate = |e: &PluginEvent| match e {
                    PluginEvent::Rejected { reason } => reason.contains(text),
                    _ => false,
                };
                seen.iter()
                    .filter(|(_, e)| of_rate(e) == is_of_rate)
                    .count()
            };
            until("the first thousand are reported", || reports(false) >= 1000).await;
            until("the rate is reported", || reports(true) > 0).await;
            until("nothing is left", || {
                open_files() <= before.0 && tasks() <= before.1
            })
            .await;
            assert!(nri.plugins().is_empty());
            if allowed == own {
                let taken = reports(false);
                let _stub = loop {
                    match join(&place, "10-good").await {
                        Ok(stub) => break stub,
                        Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                    }
                };
                until_active(&nri, "10-good").await;
                // The socket's queue is in order: all earlier connections were accepted.
                let earned = usize::try_from(begun.elapsed().as_millis() / 5).unwrap();
                assert!(taken <= 1001 + earned, "{taken} in {:?}", begun.elapsed());
            }
        }
    });
}

/// A runtime that records the requesters, and the number of concurrent updates.
#[derive(Default)]
struct Counting {
    now: AtomicUsize,
    most: AtomicUsize,
    done: Mutex<Vec<String>>,
}

impl Source for Counting {
    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }

    fn update(
        &self,
        _: &Requester,
        updates: Vec<ContainerUpdate>,
    ) -> BoxFuture<'_, Vec<FailedUpdate>> {
        Box::pin(async move {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            tokio::task::yield_now().await;
            let ids = updates.into_iter().map(|u| u.container_id);
            self.done.lock().unwrap().extend(ids);
            self.now.fetch_sub(1, Ordering::SeqCst);
            Vec::new()
        })
    }

    fn evict(&self, _: &PluginId, _: String, _: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// A runtime whose updates never end.
struct Hangs;

impl Source for Hangs {
    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }

    fn update(&self, _: &Requester, _: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<FailedUpdate>> {
        Box::pin(std::future::pending())
    }

    fn evict(&self, _: &PluginId, _: String, _: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

#[test]
fn updates_of_synchronize_behind_a_slow_one_are_errors_of_the_plugin() {
    alone(async {
        let place = Place::new();
        let builder = place.builder().source(Arc::new(Hangs));
        let builder = builder.sync_timeout(Duration::from_secs(2));
        let nri = builder.start().await.unwrap();
        let handlers = Record::default().handlers();
        let handlers =
            handlers.synchronize(|_, _| async { Ok(["a", "b", "c"].map(update).into()) });
        let _stub = active(&nri, &place, "10-asks", handlers).await;
        let there = common::there(&nri);
        assert_eq!(there[0].errors, 3, "{there:?}");
        let error = there[0].last_error.as_deref().unwrap_or_default();
        assert!(error.contains("update of container c"), "{error}");
        assert!(error.contains("not applied within 2s"), "{error}");
    });
}

#[test]
fn a_flood_of_updates_is_delayed_not_refused_and_delays_no_other_plugin() {
    alone(async {
        let (place, runtime) = (Place::new(), Arc::new(Counting::default()));
        let builder = place.builder().source(runtime.clone());
        let nri = builder.start().await.unwrap();
        let flood = join(&place, "10-flood").await.unwrap();
        let other = join(&place, "20-other").await.unwrap();
        for id in ["10-flood", "20-other"] {
            until_active(&nri, id).await;
        }
        let begun = Instant::now();
        let calls = (0..6).map(|call| {
            let runtime = flood.runtime();
            let updates = (0..100).map(|n| update(&format!("{call}-{n}"))).collect();
            tokio::spawn(async move { runtime.update_containers(updates, Vec::new()).await })
        });
        let calls: Vec<_> = calls.collect();
        until("the flood has begun", || {
            !runtime.done.lock().unwrap().is_empty()
        })
        .await;
        let other = other.runtime();
        let updated = other.update_containers(vec![update("other")], Vec::new());
        assert!(updated.await.unwrap().is_empty());
        assert!(calls.iter().any(|call| !call.is_finished()));
        for call in calls {
            assert!(call.await.unwrap().unwrap().is_empty());
        }
        // A burst of 500, then 100 per second.
        assert!(begun.elapsed() >= Duration::from_secs(1));
        assert_eq!(runtime.done.lock().unwrap().len(), 601);
        assert!(
            runtime.most.load(Ordering::SeqCst) <= 2,
            "one for each plugin"
        );
    });
}
