//! Both directions with the Go module `github.com/containerd/nri`: Go plugins on our runtime side,
//! our plugins on the Go runtime side. `tests/go` has the programs; `go.mod` pins the newest
//! release. `generations.rs` tests plugins on older releases.
//!
//! Requires Go on the PATH. `NRI_WITHOUT_GO=1` skips these tests.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod common;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{
    Place, Record, container,
    go::{go_plugin, go_runtime, programs},
    pod, until, until_active,
};
use nri::{Handlers, Snapshot, proto::*, stub::Stub};

fn padded(id: &str, bytes: usize) -> Container {
    Container {
        annotations: BTreeMap::from([("pad".into(), "x".repeat(bytes))]),
        ..container(id, "p")
    }
}

/// Body sizes around every limit of the framing (15.5).
const BODIES: [usize; 9] = [10, 3000, 4000, 4080, 4086, 4090, 5000, 100_000, 4_000_000];

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_all_sizes_cross_to_a_go_plugin_and_back() {
    let place = Place::new();
    let nri = place
        .builder()
        .request_timeout(Duration::from_secs(5))
        .start()
        .await
        .unwrap();
    for reply in [0, 4090, 1_000_000] {
        let pad = reply.to_string();
        let Some(_go) = go_plugin("plugin", &place, "10", &["-pad", &pad]) else {
            return;
        };
        until_active(&nri, "10-go").await;
        for body in BODIES {
            let turn = nri.turn(Event::CreateContainer).await;
            let created = nri
                .create_container(&turn, pod("p"), padded("c", body))
                .await
                .unwrap();
            let annotations = created.merged.adjust.annotations;
            assert_eq!(annotations["bytes"], body.to_string());
            assert_eq!(annotations.get("pad").map_or(0, String::len), reply);
        }
        drop(_go);
        until("it has ended", || common::there(&nri).is_empty()).await;
    }
}

/// With one processor, Go's mux reads all available frames before another goroutine empties its
/// queue (NRI-108).
#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_updates_at_once_from_a_go_plugin_all_arrive_and_are_answered() {
    for processors in ["1", "2"] {
        let place = Place::new();
        let nri = place
            .builder()
            .request_timeout(Duration::from_secs(5))
            .start()
            .await
            .unwrap();
        let more = ["-updates", "500", "-procs", processors];
        let Some(go) = go_plugin("plugin", &place, "10", &more) else {
            return;
        };
        assert_eq!(go.says("Updates").await, "Updates 500 failed 0 <nil>");
        assert_eq!(place.runtime.updates.lock().unwrap().len(), 500);
        assert_eq!(common::there(&nri).len(), 1);
    }
}

fn pods(count: usize, bytes: usize) -> Vec<PodSandbox> {
    let pad = BTreeMap::from([("pad".into(), "x".repeat(bytes))]);
    let pods = (0..count).map(|n| PodSandbox {
        annotations: pad.clone(),
        ..pod(&format!("p{n}"))
    });
    pods.collect()
}

fn containers(count: usize, bytes: usize) -> Vec<Container> {
    let containers = (0..count).map(|n| padded(&format!("c{n}"), bytes));
    containers.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_any_sizes_reach_a_go_plugin_in_parts() {
    // Hundreds of large pods; then lists that make Go's own splitting panic, or send empty parts in
    // an endless loop (NRI-323).
    for (pods, containers, expected) in [
        (
            pods(300, 60_000),
            containers(300, 0),
            "Synchronize 300 pods 300 containers 18000000 bytes",
        ),
        (
            pods(2, 0),
            containers(10, 800_000),
            "Synchronize 2 pods 10 containers 8000000 bytes",
        ),
        (
            pods(1, 0),
            containers(30, 300_000),
            "Synchronize 1 pods 30 containers 9000000 bytes",
        ),
        // No message can carry an object of 5 MB: it is sent without its longest field.
        (
            pods(3, 0),
            [containers(1, 5_000_000), containers(2, 100)].concat(),
            "Synchronize 3 pods 3 containers 200 bytes",
        ),
    ] {
        let place = Place::new();
        *place.runtime.all.lock().unwrap() = Snapshot { pods, containers };
        let nri = place.builder().start().await.unwrap();
        let Some(go) = go_plugin("plugin", &place, "10", &[]) else {
            return;
        };
        assert_eq!(go.says("Synchronize").await, expected);
        until_active(&nri, "10-go").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launched_go_plugin_takes_its_socket_and_is_ended() {
    let Some(programs) = programs() else { return };
    let place = Place::new();
    let plugins = place.dir.path().join("plugins");
    fs::create_dir(&plugins).unwrap();
    // Copied by `cp`: programs that this process starts meanwhile would inherit the file open for
    // writing.
    let mut copy = std::process::Command::new("cp");
    let copied = copy.args([programs.join("plugin"), plugins.join("05-launched")]);
    assert!(copied.status().unwrap().success());
    let nri = place.builder().no_external_plugins().start().await.unwrap();
    let turn = nri.turn(Event::CreateContainer).await;
    let created = nri
        .create_container(&turn, pod("p"), container("c", "p"))
        .await
        .unwrap();
    assert_eq!(created.merged.adjust.annotations["go"], "was here");
    let pid = nri.plugins()[0].pid.unwrap();
    nri.shutdown("over").await;
    assert!(
        !Path::new(&format!("/proc/{pid}")).exists(),
        "it is not ended and reaped"
    );
}

fn answers_with_pad() -> Handlers {
    Handlers::new().create_container(|_, c| async move {
        let pad = c.annotations.get("pad").cloned().unwrap_or_default();
        let adjust = ContainerAdjustment {
            annotations: BTreeMap::from([
                ("bytes".into(), pad.len().to_string()),
                ("pad".into(), pad),
            ]),
            ..Default::default()
        };
        Ok((Some(adjust), Vec::new()))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn our_plugins_live_on_the_go_runtime() {
    let place = Place::new();
    let Some(mut go) = go_runtime(&place, &[]) else {
        return;
    };
    go.says("ready").await;
    let record = Record::default();
    let stub = Stub::builder(record.handlers())
        .name("rust")
        .index("10")
        .socket(place.socket())
        .start()
        .await
        .unwrap();
    assert_eq!(stub.runtime_info().name, "go-runtime");
    // Once at its start, without a plugin; then for our plugin.
    go.says_times("synchronized <nil>", 2).await;
    go.report("life");
    assert_eq!(go.says("life").await, "life <nil>");
    let expected = [
        "Synchronize p0,p1 c-p0,c-p1",
        "RunPodSandbox pod",
        "UpdatePodSandbox pod",
        "PostUpdatePodSandbox pod",
        "CreateContainer pod ctr",
        "PostCreateContainer pod ctr",
        "StartContainer pod ctr",
        "PostStartContainer pod ctr",
        "UpdateContainer pod ctr",
        "PostUpdateContainer pod ctr",
        "StopContainer pod ctr",
        "RemoveContainer pod ctr",
        "StopPodSandbox pod",
        "RemovePodSandbox pod",
    ];
    assert_eq!(record.lines(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_all_sizes_cross_between_the_go_runtime_and_our_plugin() {
    let place = Place::new();
    let Some(mut go) = go_runtime(&place, &[]) else {
        return;
    };
    go.says("ready").await;
    let _stub = Stub::builder(answers_with_pad())
        .name("rust")
        .index("10")
        .socket(place.socket())
        .start()
        .await
        .unwrap();
    // Once at its start, without a plugin; then for our plugin.
    go.says_times("synchronized <nil>", 2).await;
    for body in BODIES {
        go.report(&format!("create {body}"));
        let answer = go.says(&format!("created {body} ")).await;
        assert_eq!(answer, format!("created {body} {body} <nil>"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_updates_at_once_all_reach_the_go_runtime() {
    let place = Place::new();
    let Some(mut go) = go_runtime(&place, &[]) else {
        return;
    };
    go.says("ready").await;
    let stub = Stub::builder(Record::default().handlers())
        .name("rust")
        .index("10")
        .socket(place.socket())
        .start()
        .await
        .unwrap();
    // Once at its start, without a plugin; then for our plugin.
    go.says_times("synchronized <nil>", 2).await;
    let refused = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..500)
        .map(|n| {
            let (runtime, refused) = (stub.runtime(), refused.clone());
            tokio::spawn(async move {
                let update = ContainerUpdate {
                    container_id: format!("c{n}"),
                    ..Default::default()
                };
                if let Err(e) = runtime.update_containers(vec![update], Vec::new()).await {
                    eprintln!("{n}: {e}");
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(refused.load(Ordering::SeqCst), 0);
    go.report("updates");
    assert_eq!(go.says("updates").await, "updates 500");
}

#[tokio::test(flavor = "multi_thread")]
async fn our_plugin_takes_long_lists_from_the_go_runtime_in_parts() {
    for (pods, pad) in [(80, 150_000), (300, 60_000)] {
        let place = Place::new();
        let (count, bytes) = (pods.to_string(), pad.to_string());
        let Some(go) = go_runtime(&place, &["-pods", &count, "-pad", &bytes]) else {
            return;
        };
        go.says("ready").await;
        let listed = Arc::new(Mutex::new((0, 0, 0)));
        let into = listed.clone();
        let handlers = Handlers::new()
            .run_pod_sandbox(|_| async { Ok(()) })
            .synchronize(move |pods, containers| {
                let bytes = pods.iter().map(|p| p.annotations["pad"].len()).sum();
                *into.lock().unwrap() = (pods.len(), containers.len(), bytes);
                async { Ok(Vec::new()) }
            });
        let _stub = Stub::builder(handlers)
            .name("rust")
            .index("10")
            .socket(place.socket())
            .start()
            .await
            .unwrap();
        // Once at its start, without a plugin; then for our plugin.
        go.says_times("synchronized <nil>", 2).await;
        assert_eq!(*listed.lock().unwrap(), (pods, pods, pods * pad));
    }
}
