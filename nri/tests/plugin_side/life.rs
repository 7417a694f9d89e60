//! A plugin's life from start to end, on our runtime side and on Go's.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use nri::{
    CallError, Code, Context, Handlers, Plugin, Result, Runtime, StubBuilder, StubError,
    adjust::update, proto::*,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, oneshot},
    task::JoinHandle,
};

use crate::{
    Notes, builder,
    common::{self, Place, go::go_runtime, until, until_active},
    soon, started,
};

/// A connection between plugins and the runtime, at a socket of its own, that can be cut.
struct Wire(JoinHandle<()>);

impl Wire {
    fn to(place: &Place) -> Self {
        let path = place.dir.path().join("wire.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let runtime = place.socket();
        Self(tokio::spawn(async move {
            loop {
                let (mut plugin, _) = listener.accept().await.unwrap();
                let mut runtime = UnixStream::connect(&runtime).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut plugin, &mut runtime).await;
            }
        }))
    }

    async fn cut(self) {
        self.0.abort();
        let _ = self.0.await;
    }
}

fn through_wire(place: &Place, plugin: impl Into<Handlers>) -> StubBuilder {
    builder(place, plugin).socket(place.dir.path().join("wire.sock"))
}

fn eviction(container: &str) -> ContainerEviction {
    ContainerEviction {
        container_id: container.into(),
        reason: "a test".into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn start_returns_synchronised_so_that_an_update_and_an_eviction_right_after_it_succeed() {
    // Repeated: the runtime reads the answer to Synchronize and the request concurrently, in either
    // order.
    for n in 0..100 {
        let place = Place::new();
        let _nri = started(&place).await;
        let notes = Arc::new(Notes::default());
        let stub = builder(&place, notes.clone()).start().await.unwrap();
        assert_eq!(notes.lines(), ["configured", "0 pods"]);
        let updates = vec![update("c", false)];
        let runtime = stub.runtime();
        let asked = runtime.update_containers(updates, vec![eviction("e")]);
        assert_eq!(asked.await, Ok(Vec::new()), "at start {n}");
        assert_eq!(place.runtime.updates.lock().unwrap().len(), 1);
        let evicted = place.runtime.evictions.lock().unwrap().clone();
        assert_eq!(evicted, [("e".to_owned(), "a test".to_owned())]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_right_after_start_reaches_the_go_runtime() {
    let place = Place::new();
    let Some(mut go) = go_runtime(&place, &[]) else {
        return;
    };
    go.says("ready").await;
    let stub = builder(&place, Notes::default()).start().await.unwrap();
    let runtime = stub.runtime();
    let asked = runtime.update_containers(vec![update("c", false)], vec![eviction("e")]);
    assert_eq!(asked.await, Ok(Vec::new()));
    go.report("updates");
    assert_eq!(go.says("updates").await, "updates 1");
}

#[tokio::test]
async fn start_fails_where_the_plugin_refuses_to_be_synchronised() {
    struct Picky;
    impl Plugin for Picky {
        async fn synchronize(
            &self,
            _: &Context,
            _: Vec<PodSandbox>,
            _: Vec<Container>,
        ) -> Result<Vec<ContainerUpdate>> {
            Err("not this list".into())
        }
        async fn run_pod_sandbox(&self, _: &Context, _: PodSandbox) -> Result<()> {
            Ok(())
        }
    }
    let place = Place::new();
    let _nri = started(&place).await;
    let refused = builder(&place, Picky).start().await.unwrap_err();
    assert!(
        matches!(&refused, StubError::Synchronize(status) if status.message == "not this list"),
        "{refused}"
    );
}

#[tokio::test]
async fn an_update_before_the_plugin_is_synchronised_is_refused_at_once_and_not_asked_again() {
    let place = Place::new();
    let _nri = started(&place).await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    let handlers = Handlers::new()
        .run_pod_sandbox(|_| async { Ok(()) })
        .synchronize(move |_, _| {
            let gate = closed.clone();
            async move {
                let _open = gate.acquire().await;
                Ok(Vec::new())
            }
        });
    let stub = builder(&place, handlers).register().await.unwrap();
    let runtime = stub.runtime();
    let early = soon(runtime.evict("e", "too early")).await.unwrap_err();
    assert!(
        matches!(&early, CallError::Status(s) if s.is(Code::FailedPrecondition)),
        "{early}"
    );
    gate.add_permits(1);
    soon(stub.synchronized()).await.unwrap();
    runtime.evict("e", "now").await.unwrap();
    assert_eq!(place.runtime.evictions.lock().unwrap().len(), 1);
}

/// Waits until the handle is connected, and evicts through it.
async fn evict_through(runtime: &Runtime, container: &str) {
    soon(runtime.synchronized()).await;
    runtime.evict(container, "a test").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_under_run_reaches_the_runtime_also_after_a_reconnect() {
    let place = Place::new();
    let nri = started(&place).await;
    let wire = Wire::to(&place);
    let notes = Arc::new(Notes::default());
    let ended = Arc::new(Mutex::new(Vec::new()));
    let into = ended.clone();
    let stub = through_wire(&place, notes.clone()).on_disconnect(move |why, again| {
        into.lock().unwrap().push((why.to_string(), again));
    });
    let from_outside = stub.runtime();
    let nowhere = from_outside.evict("e0", "nobody is there").await;
    assert!(matches!(nowhere, Err(CallError::Lost(_))), "{nowhere:?}");
    let running = tokio::spawn(stub.run());
    evict_through(&from_outside, "e1").await;
    assert_eq!(from_outside.info().unwrap().name, "test");
    // A handle that a handler stored works in the same way.
    let from_a_handler = notes.context.lock().unwrap().clone().unwrap();
    let from_a_handler = from_a_handler.runtime().clone();
    wire.cut().await;
    until("the disconnect is reported", || {
        !ended.lock().unwrap().is_empty()
    })
    .await;
    assert!(from_outside.info().is_none());
    let wire = Wire::to(&place);
    evict_through(&from_outside, "e2").await;
    evict_through(&from_a_handler, "e3").await;
    let evicted = place.runtime.evictions.lock().unwrap().clone();
    let evicted: Vec<_> = evicted.into_iter().map(|(id, _)| id).collect();
    assert_eq!(evicted, ["e1", "e2", "e3"]);
    assert_eq!(
        notes.lines(),
        ["configured", "0 pods", "configured", "0 pods"]
    );
    let (_, again) = ended.lock().unwrap()[0];
    assert!(again.is_some_and(|pause| pause < Duration::from_secs(1)));
    running.abort();
    wire.cut().await;
    drop(nri);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_under_run_reaches_the_go_runtime_also_after_it_was_killed_and_started_again() {
    let place = Place::new();
    let Some(mut go) = go_runtime(&place, &[]) else {
        return;
    };
    go.says("ready").await;
    let ended = Arc::new(Mutex::new(0));
    let count = ended.clone();
    let stub = builder(&place, Notes::default()).on_disconnect(move |_, _| {
        *count.lock().unwrap() += 1;
    });
    let runtime = stub.runtime();
    let running = tokio::spawn(stub.run());
    soon(runtime.synchronized()).await;
    let asked = runtime.update_containers(vec![update("c", false)], Vec::new());
    assert_eq!(asked.await, Ok(Vec::new()));
    go.kill();
    // Each failed attempt to reconnect is reported, too.
    until("the disconnect is reported", || *ended.lock().unwrap() >= 1).await;
    // A killed runtime leaves its socket, which Go accepts.
    let mut again = go_runtime(&place, &[]).unwrap();
    soon(runtime.synchronized()).await;
    let asked = runtime.update_containers(vec![update("c", false)], Vec::new());
    assert_eq!(asked.await, Ok(Vec::new()));
    again.report("updates");
    assert_eq!(again.says("updates").await, "updates 1");
    running.abort();
}

#[tokio::test]
async fn run_ends_ok_when_the_runtime_shuts_down() {
    let place = Place::new();
    let nri = started(&place).await;
    let running = tokio::spawn(builder(&place, Notes::default()).reconnect(false).run());
    until_active(&nri, "10-notes").await;
    nri.shutdown("the test says so").await;
    soon(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn after_shutdown_a_request_fails_at_once_and_does_not_reach_the_runtime() {
    struct Asks(Mutex<Option<oneshot::Sender<(String, Runtime)>>>);
    impl Plugin for Asks {
        async fn run_pod_sandbox(&self, _: &Context, _: PodSandbox) -> Result<()> {
            Ok(())
        }
        async fn shutdown(&self, cx: &Context) {
            let report = self.0.lock().unwrap().take().unwrap();
            let _ = report.send((cx.runtime_info().name.clone(), cx.runtime().clone()));
        }
    }
    let place = Place::new();
    let nri = started(&place).await;
    let (report, reported) = oneshot::channel();
    let plugin = Asks(Mutex::new(Some(report)));
    let stub = builder(&place, plugin).start().await.unwrap();
    let runtime = stub.runtime();
    let early = runtime.update_containers(vec![update("early", false)], Vec::new());
    assert_eq!(early.await, Ok(Vec::new()));
    nri.shutdown("a test").await;
    let (name, runtime) = soon(reported).await.unwrap();
    assert_eq!(name, stub.runtime_info().name);
    let late = runtime.update_containers(vec![update("late", false)], Vec::new());
    let refused = CallError::Lost("not connected to a runtime".into());
    assert_eq!(late.await, Err(refused));
    assert!(runtime.info().is_none());
    assert_eq!(place.runtime.updates.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn run_ends_with_the_error_when_its_connection_is_lost_and_it_may_not_come_back() {
    let place = Place::new();
    let nri = started(&place).await;
    let wire = Wire::to(&place);
    let stub = through_wire(&place, Notes::default()).reconnect(false);
    let running = tokio::spawn(stub.run());
    until_active(&nri, "10-notes").await;
    wire.cut().await;
    let lost = soon(running).await.unwrap().unwrap_err();
    assert!(matches!(lost, StubError::Ended(_)), "{lost}");
}

#[tokio::test]
async fn run_ends_ok_when_it_is_told_to_stop_and_leaves_the_runtime() {
    let place = Place::new();
    let nri = started(&place).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let stub = builder(&place, Notes::default());
    let running = tokio::spawn(stub.run_until(async {
        let _ = stopped.await;
    }));
    until_active(&nri, "10-notes").await;
    stop.send(()).unwrap();
    soon(running).await.unwrap().unwrap();
    until("it has ended", || common::there(&nri).is_empty()).await;
}
