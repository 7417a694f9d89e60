//! The in-memory runtime for tests by authors of plugins, `nri-testing`.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use nri::{
    Handlers, Outcome, PluginEvent, PluginId,
    adjust::{Adjust as _, SetResources as _, update},
    proto::{
        Container, ContainerAdjustment, Event, LinuxMemory, LinuxResources, OptionalInt64,
        PodSandbox,
    },
    stub::Stub,
};
use nri_testing::{Failed, FakeRuntime, Flavor, Place, PluginRequestKind, container, pod};

const LIMIT: Duration = Duration::from_secs(5);

fn id() -> PluginId {
    "10-tested".parse().expect("an id")
}

/// Connects a plugin with these handlers, and waits until it is active.
async fn connected(runtime: &FakeRuntime, handlers: Handlers) -> Stub {
    let mut builder = Stub::builder(handlers).name("tested").index("10");
    builder = builder.socket(runtime.socket());
    let stub = builder.start().await.expect("it connects");
    assert!(runtime.joined(&id(), LIMIT).await.is_some(), "it joins");
    stub
}

/// Records the arguments of each creation.
#[derive(Clone, Default)]
struct Reported(Arc<Mutex<Vec<(PodSandbox, Container)>>>);

impl Reported {
    fn handlers(&self) -> Handlers {
        let reported = self.clone();
        Handlers::new().create_container(move |pod, container| {
            reported.0.lock().expect("no panic").push((pod, container));
            async { Ok((None, Vec::new())) }
        })
    }
}

#[tokio::test]
async fn what_exists_is_in_the_list_of_who_joins_and_of_who_joins_after_a_restart() {
    let lists = Arc::<Mutex<Vec<Vec<String>>>>::default();
    let handlers = || {
        let seen = lists.clone();
        Handlers::new()
            .run_pod_sandbox(|_| async { Ok(()) })
            .synchronize(move |pods, containers| {
                let names = pods.into_iter().map(|p| p.name);
                let names = names.chain(containers.into_iter().map(|c| c.name));
                seen.lock().expect("no panic").push(names.collect());
                async { Ok(Vec::new()) }
            })
    };
    let builder = FakeRuntime::builder().existing(pod("old"), [container("one")]);
    let mut runtime = builder.start().await.expect("it starts");
    let first = connected(&runtime, handlers()).await;
    runtime.run_pod(pod("new")).await.expect("no veto");
    runtime.restart().await.expect("it comes back");
    drop(first);
    let _second = connected(&runtime, handlers()).await;
    let lists = lists.lock().expect("no panic").clone();
    assert_eq!(lists, [vec!["old", "one"], vec!["new", "old", "one"]]);
}

#[tokio::test]
async fn a_refused_creation_is_stopped_and_removed_and_leaves_nothing() {
    let handlers = Handlers::new()
        .create_container(|_, _| async { Err("no".into()) })
        .stop_container(|_, _| async { Ok(Vec::new()) })
        .remove_container(|_, _| async { Ok(()) });
    let builder = FakeRuntime::builder().plugin(id(), handlers);
    let runtime = builder.start().await.expect("it starts");
    runtime.run_pod(pod("web")).await.expect("no veto");
    runtime.take_deliveries();
    let refused = runtime.create("web", container("c")).await;
    assert!(matches!(refused, Err(Failed::Refused(_))), "{refused:?}");
    let deliveries = runtime.take_deliveries().into_iter();
    let events: Vec<_> = deliveries
        .filter(|d| d.outcome != Outcome::NotSubscribed)
        .map(|d| d.event)
        .collect();
    let expected = [
        Event::CreateContainer,
        Event::StopContainer,
        Event::RemoveContainer,
    ];
    assert_eq!(events, expected);
    let there = runtime.container("c");
    assert!(matches!(there, Err(Failed::NotThere { .. })), "{there:?}");
}

#[tokio::test]
async fn a_wish_says_whether_its_container_is_there_was_removed_or_never_was() {
    let runtime = FakeRuntime::start().await.expect("it starts");
    let stub = connected(&runtime, Reported::default().handlers()).await;
    runtime.run_pod(pod("web")).await.expect("no veto");
    let mut ids = Vec::new();
    for name in ["there", "removed"] {
        let created = runtime.create("web", container(name)).await;
        created.expect("no veto");
        ids.push(runtime.container(name).expect("created").1.id);
    }
    runtime
        .remove_container("removed")
        .await
        .expect("it is there");
    ids.push("never".to_owned());
    let requests = ids.iter().map(|id| {
        let mut request = update(id, false);
        request.linux.get_or_insert_default().resources = Some(LinuxResources::default());
        request
    });
    let (connection, requests) = (stub.runtime(), requests.collect());
    let failed = connection.update_containers(requests, Vec::new()).await;
    let failed = failed.expect("it answers").into_iter();
    let failed: Vec<_> = failed.map(|u| u.container_id).collect();
    assert_eq!(failed, ids[1..]);
    let requests = runtime.take_requests().into_iter();
    let places: Vec<_> = requests
        .map(|w| {
            (
                w.place,
                w.answer,
                matches!(w.kind, PluginRequestKind::Update(_)),
            )
        })
        .collect();
    let expected = [Place::There, Place::Removed, Place::Never];
    assert_eq!(places, expected.map(|place| (place, false, true)));
}

#[tokio::test]
async fn later_events_have_a_container_as_plugins_adjusted_and_updated_it() {
    let seen = Arc::<Mutex<Vec<Container>>>::default();
    let (created, stopped) = (seen.clone(), seen.clone());
    let handlers = Handlers::new()
        .create_container(|_, _| async {
            let mut adjust = ContainerAdjustment::default();
            adjust.add_env("A", "1").memory_limit(7).cpu_shares(5);
            Ok((Some(adjust), Vec::new()))
        })
        .post_create_container(move |_, container| {
            created.lock().expect("no panic").push(container);
            async { Ok(()) }
        })
        .stop_container(move |_, container| {
            stopped.lock().expect("no panic").push(container);
            async { Ok(Vec::new()) }
        });
    let runtime = FakeRuntime::start().await.expect("it starts");
    let _stub = connected(&runtime, handlers).await;
    runtime.run_pod(pod("web")).await.expect("no veto");
    runtime
        .create("web", container("c"))
        .await
        .expect("no veto");
    let update = LinuxResources {
        memory: Some(LinuxMemory {
            limit: Some(OptionalInt64 { value: 9 }),
            ..LinuxMemory::default()
        }),
        ..LinuxResources::default()
    };
    runtime
        .update_container("c", update)
        .await
        .expect("no veto");
    runtime.stop_container("c").await.expect("it is there");
    let seen = seen.lock().expect("no panic");
    let facts = seen.iter().map(|c| {
        let resources = c
            .linux
            .clone()
            .and_then(|l| l.resources)
            .expect("it has some");
        let shares = resources.cpu.and_then(|cpu| cpu.shares).map(|s| s.value);
        let limit = resources.memory.and_then(|m| m.limit).map(|l| l.value);
        (c.env.contains(&"A=1".to_owned()), limit, shares)
    });
    let facts: Vec<_> = facts.collect();
    assert_eq!(facts, [(true, Some(7), Some(5)), (true, Some(9), Some(5))]);
}

#[tokio::test]
async fn fields_are_filled_as_the_flavor_says_and_what_is_given_stays() {
    let containerd = "io.kubernetes.cri.container-name";
    let crio = "io.kubernetes.cri-o.ContainerName";
    for (flavor, annotation, cgroup) in [
        (Flavor::Plain, None, ""),
        (Flavor::Containerd, Some(containerd), ":cri-containerd:"),
        (Flavor::CriO, Some(crio), ":crio:"),
    ] {
        let reported = Reported::default();
        let builder = FakeRuntime::builder().flavor(flavor);
        let builder = builder.plugin(id(), reported.handlers());
        let runtime = builder.start().await.expect("it starts");
        let given = pod("web").label("io.kubernetes.pod.name", "mine");
        runtime.run_pod(given).await.expect("no veto");
        let made = container("c").annotation("a", "b");
        runtime.create("web", made).await.expect("no veto");
        let reported = reported.0.lock().expect("no panic").clone();
        let (pod, container) = reported.last().expect("one creation");
        assert_eq!((pod.id.len(), container.id.len()), (64, 64));
        assert_eq!(container.pod_sandbox_id, pod.id);
        assert_eq!(pod.labels["io.kubernetes.pod.name"], "mine");
        assert_eq!(container.annotations["a"], "b");
        let named = annotation.map(|key| container.annotations[key].as_str());
        assert_eq!(named, annotation.map(|_| "c"));
        let linux = container.linux.as_ref().expect("it is there");
        let path = linux.cgroups_path.as_str();
        assert!(path.contains(cgroup), "{path}");
        assert_eq!(path.is_empty(), cgroup.is_empty());
        let mut mounts = container.mounts.iter();
        let cgroups = mounts.any(|m| m.destination == "/sys/fs/cgroup");
        assert_eq!(cgroups, annotation.is_some());
    }
}

#[tokio::test]
async fn a_whole_life_reaches_the_plugin_in_order_and_what_became_of_it_is_told() {
    let runtime = FakeRuntime::start().await.expect("it starts");
    let handlers = Handlers::new()
        .run_pod_sandbox(|_| async { Ok(()) })
        .start_container(|_, _| async { Ok(()) })
        .update_container(|_, _, _| async { Ok(Vec::new()) })
        .remove_pod_sandbox(|_| async { Ok(()) });
    let stub = connected(&runtime, handlers).await;
    runtime.run_pod(pod("web")).await.expect("no veto");
    let taken = runtime.run_pod(pod("web")).await;
    assert!(matches!(taken, Err(Failed::Taken { .. })), "{taken:?}");
    let missing = runtime.create("shop", container("c")).await;
    let missing = missing.expect_err("there is no such pod");
    assert_eq!(
        format!("{missing:?}"),
        "there is no pod \"shop\": create it first"
    );
    let created = runtime.create("web", container("c")).await;
    created.expect("no veto");
    runtime.start_container("c").await.expect("no veto");
    let mut resources = LinuxResources::default();
    resources.memory.get_or_insert_default().limit = Some(OptionalInt64 { value: 7 });
    let updated = runtime.update_container("c", resources).await;
    updated.expect("no veto");
    let (_, now) = runtime.container("c").expect("it is there");
    let resources = now.linux.and_then(|l| l.resources).expect("updated");
    let limit = resources.memory.and_then(|m| m.limit);
    assert_eq!(limit.map(|l| l.value), Some(7));
    runtime.remove_pod("web").await.expect("it is there");
    let deliveries = runtime.take_deliveries().into_iter();
    let events: Vec<_> = deliveries
        .filter(|d| d.outcome == Outcome::Answered)
        .map(|d| d.event)
        .collect();
    let expected = [
        Event::RunPodSandbox,
        Event::StartContainer,
        Event::UpdateContainer,
        Event::RemovePodSandbox,
    ];
    assert_eq!(events, expected);
    runtime.shutdown().await;
    drop(stub);
    let mut happenings = runtime.take_happenings().into_iter();
    let closed = |e: &PluginEvent| matches!(e, PluginEvent::Closed { .. });
    assert!(happenings.any(|h| h.plugin == Some(id()) && closed(&h.event)));
}
