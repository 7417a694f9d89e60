//! A plugin's subscription, the content of its events, and the effect of its answers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use nri::{
    CallError, Context, CreateAnswer, EventMask, Handlers, Plugin, Result, StubError, UpdateAnswer,
    adjust::{Adjust, update},
    proto::*,
};

use crate::{
    Notes, builder,
    common::{self, Place, container, pod, until, until_active},
    started,
};

#[tokio::test]
async fn a_container_is_evicted_by_the_answer_of_create_container() {
    let place = Place::new();
    let nri = started(&place).await;
    let _stub = builder(&place, Notes::default()).start().await.unwrap();
    until_active(&nri, "10-notes").await;
    let turn = nri.turn(Event::CreateContainer).await;
    let created = nri
        .create_container(&turn, pod("p"), container("c", "p"))
        .await
        .unwrap();
    let merged = created.merged;
    assert_eq!(merged.adjust.env[0].key, "POD");
    assert_eq!(merged.adjust.env[0].value, "name-of-p");
    let updated: Vec<_> = merged.update.iter().map(|u| &u.container_id).collect();
    assert_eq!(updated, ["other"]);
    let evicted: Vec<_> = merged.evict.iter().map(|e| &e.container_id).collect();
    assert_eq!(evicted, ["old", "older"]);
    let shares = LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value: 7 }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let updated = nri
        .update_container(&turn, pod("p"), container("c", "p"), shares)
        .await
        .unwrap();
    assert_eq!(updated.merged.evict[0].container_id, "loud");
}

#[tokio::test]
async fn state_is_shared_by_all_methods_without_a_clone() {
    /// The complete program, without `Arc` or clones.
    #[derive(Default)]
    struct Count {
        containers: Mutex<u32>,
    }
    impl Plugin for Count {
        async fn create_container(
            &self,
            _: &Context,
            _: PodSandbox,
            _: Container,
        ) -> Result<CreateAnswer> {
            let mut containers = self.containers.lock().unwrap();
            *containers += 1;
            let mut answer = CreateAnswer::default();
            answer.adjust.add_env("NUMBER", containers.to_string());
            Ok(answer)
        }

        async fn remove_container(&self, _: &Context, _: PodSandbox, _: Container) -> Result<()> {
            *self.containers.lock().unwrap() -= 1;
            Ok(())
        }
    }
    let place = Place::new();
    let nri = started(&place).await;
    let _stub = builder(&place, Count::default()).start().await.unwrap();
    until_active(&nri, "10-notes").await;
    let turn = nri.turn(Event::CreateContainer).await;
    let mut numbers = Vec::new();
    for id in ["a", "b"] {
        let created = nri.create_container(&turn, pod("p"), container(id, "p"));
        let adjust = created.await.unwrap().merged.adjust;
        numbers.push(adjust.env[0].value.clone());
        nri.remove_container(pod("p"), container(id, "p")).await;
    }
    assert_eq!(numbers, ["1", "1"]);
}

#[tokio::test]
async fn a_handler_knows_its_deadline_and_which_runtime_asks() {
    let place = Place::new();
    let nri = started(&place).await;
    let notes = Arc::new(Notes::default());
    let _stub = builder(&place, notes.clone()).start().await.unwrap();
    until_active(&nri, "10-notes").await;
    nri.run_pod_sandbox(pod("p")).await.unwrap();
    let cx = notes.context.lock().unwrap().clone().unwrap();
    let info = cx.runtime_info();
    assert_eq!((&*info.name, &*info.version), ("test", "v1.2.3"));
    let limit = nri.timeouts().request;
    assert_eq!(info.request_timeout, limit);
    let left = cx.time_left().unwrap();
    assert!(left <= limit, "{left:?}");
    let deadline = cx.deadline().unwrap();
    let now = std::time::Instant::now();
    assert!(deadline.saturating_duration_since(now) <= left, "the same");
    until("the deadline passes", || {
        cx.time_left() == Some(Duration::ZERO)
    })
    .await;
}

#[tokio::test]
async fn a_plugin_subscribes_to_the_events_whose_methods_it_has_written() {
    struct Nothing;
    impl Plugin for Nothing {}
    assert_eq!(Handlers::from(Nothing).events(), EventMask::NONE);
    let written = "RunPodSandbox,CreateContainer,UpdateContainer";
    let notes = Handlers::from(Notes::default()).events();
    assert_eq!(notes.to_string(), written);

    /// A wrapper: it subscribes to the methods that the wrapped plugin has written.
    struct Passes<P>(P);
    impl<P: Plugin> Plugin for Passes<P> {
        fn run_pod_sandbox(
            &self,
            cx: &Context,
            pod: PodSandbox,
        ) -> impl Future<Output = Result<()>> + Send {
            self.0.run_pod_sandbox(cx, pod)
        }
    }
    let events = |handlers: Handlers| handlers.events().to_string();
    assert_eq!(events(Passes(Notes::default()).into()), "RunPodSandbox");
    assert_eq!(events(Passes(Nothing).into()), "");

    let place = Place::new();
    let nri = started(&place).await;
    let refused = builder(&place, Nothing).start().await.unwrap_err();
    assert!(matches!(refused, StubError::NoHandlers), "{refused}");
    let _stub = builder(&place, Notes::default()).start().await.unwrap();
    let events: Vec<_> = common::there(&nri).iter().map(|p| p.events).collect();
    assert_eq!(events, [notes]);
}

#[tokio::test]
async fn every_event_reaches_its_method() {
    macro_rules! all {
        ($($pods:ident)*; $($containers:ident)*) => {
            #[derive(Default)]
            struct All(Mutex<Vec<String>>);
            impl All {
                fn add(&self, line: String) {
                    self.0.lock().unwrap().push(line);
                }
            }
            impl Plugin for All {
                $(async fn $pods(&self, _: &Context, pod: PodSandbox) -> Result<()> {
                    self.add(format!("{} {}", stringify!($pods), pod.id));
                    Ok(())
                })*
                $(async fn $containers(&self, _: &Context, pod: PodSandbox, c: Container) -> Result<()> {
                    self.add(format!("{} {} {}", stringify!($containers), pod.id, c.id));
                    Ok(())
                })*
                async fn update_pod_sandbox(
                    &self, _: &Context, pod: PodSandbox, overhead: LinuxResources, now: LinuxResources,
                ) -> Result<()> {
                    let pids = |r: LinuxResources| r.pids.map_or(0, |pids| pids.limit);
                    self.add(format!("update_pod_sandbox {} {} {}", pod.id, pids(overhead), pids(now)));
                    Ok(())
                }
                async fn create_container(&self, _: &Context, pod: PodSandbox, c: Container) -> Result<CreateAnswer> {
                    self.add(format!("create_container {} {}", pod.id, c.id));
                    Ok(CreateAnswer::default())
                }
                async fn update_container(
                    &self, _: &Context, pod: PodSandbox, c: Container, now: LinuxResources,
                ) -> Result<UpdateAnswer> {
                    let pids = now.pids.map_or(0, |pids| pids.limit);
                    self.add(format!("update_container {} {} {pids}", pod.id, c.id));
                    Ok(UpdateAnswer::default())
                }
                async fn stop_container(&self, _: &Context, pod: PodSandbox, c: Container) -> Result<Vec<ContainerUpdate>> {
                    self.add(format!("stop_container {} {}", pod.id, c.id));
                    Ok(vec![update("freed", false)])
                }
                async fn validate_container_adjustment(
                    &self, _: &Context, request: ValidateContainerAdjustmentRequest,
                ) -> Result<()> {
                    let id = request.container.map(|c| c.id).unwrap_or_default();
                    self.add(format!("validate_container_adjustment {id}"));
                    if id == "bad" { Err("a bad container".into()) } else { Ok(()) }
                }
            }
        };
    }
    all! {
        run_pod_sandbox post_update_pod_sandbox stop_pod_sandbox remove_pod_sandbox;
        post_create_container start_container post_start_container post_update_container remove_container
    }
    let place = Place::new();
    let nri = started(&place).await;
    let all = Arc::new(All::default());
    let table = Handlers::from(all.clone());
    assert_eq!(table.events(), EventMask::ALL);
    let _stub = builder(&place, table).start().await.unwrap();
    until_active(&nri, "10-notes").await;
    let (p, c) = (|| pod("p"), || container("c", "p"));
    let pids = |limit| LinuxResources {
        pids: Some(LinuxPids { limit }),
        ..Default::default()
    };
    nri.run_pod_sandbox(p()).await.unwrap();
    nri.update_pod_sandbox(p(), pids(1), pids(2)).await.unwrap();
    nri.post_update_pod_sandbox(p()).await;
    let turn = nri.turn(Event::CreateContainer).await;
    nri.create_container(&turn, p(), c()).await.unwrap();
    nri.post_create_container(p(), c()).await;
    nri.start_container(p(), c()).await.unwrap();
    nri.post_start_container(p(), c()).await;
    nri.update_container(&turn, p(), c(), pids(3))
        .await
        .unwrap();
    nri.post_update_container(p(), c()).await;
    let stopped = nri.stop_container(&turn, p(), c()).await;
    assert_eq!(stopped.merged.update[0].container_id, "freed");
    nri.remove_container(p(), c()).await;
    nri.stop_pod_sandbox(p()).await;
    nri.remove_pod_sandbox(p()).await;
    let bad = nri.create_container(&turn, p(), container("bad", "p"));
    let refused = bad.await.unwrap_err().to_string();
    assert!(refused.contains("a bad container"), "{refused}");
    assert_eq!(
        *all.0.lock().unwrap(),
        [
            "run_pod_sandbox p",
            "update_pod_sandbox p 1 2",
            "post_update_pod_sandbox p",
            "create_container p c",
            "validate_container_adjustment c",
            "post_create_container p c",
            "start_container p c",
            "post_start_container p c",
            "update_container p c 3",
            "post_update_container p c",
            "stop_container p c",
            "remove_container p c",
            "stop_pod_sandbox p",
            "remove_pod_sandbox p",
            "create_container p bad",
            "validate_container_adjustment bad",
        ]
    );
}

#[tokio::test]
async fn a_plugin_may_want_fewer_events_and_is_refused_those_it_has_not_written() {
    /// Subscribes to the events in its configuration.
    struct Wants(EventMask);
    impl Plugin for Wants {
        fn events(&self, written: EventMask) -> EventMask {
            assert_eq!(written.to_string(), "RunPodSandbox,StopPodSandbox");
            self.0
        }
        async fn run_pod_sandbox(&self, _: &Context, _: PodSandbox) -> Result<()> {
            Ok(())
        }
        async fn stop_pod_sandbox(&self, _: &Context, _: PodSandbox) -> Result<()> {
            Ok(())
        }
    }
    let place = Place::new();
    let nri = started(&place).await;
    let fewer = EventMask::of(Event::StopPodSandbox);
    let stub = builder(&place, Wants(fewer)).start().await.unwrap();
    assert_eq!(common::there(&nri)[0].events, fewer);
    drop(stub);
    let other = EventMask::of(Event::StartContainer);
    let refused = builder(&place, Wants(other)).start().await.unwrap_err();
    assert!(
        matches!(&refused, StubError::Configure(why) if why.message.contains("StartContainer")),
        "{refused}"
    );
}

#[tokio::test]
async fn an_error_of_a_method_is_a_veto_and_a_plugin_can_be_part_of_the_runtime() {
    let place = Place::new();
    let notes = Arc::new(Notes::default());
    let id = "10-notes".parse().unwrap();
    let in_process = place.builder().in_process(id, notes.clone());
    let nri = in_process.start().await.unwrap();
    let refused = nri.run_pod_sandbox(pod("bad")).await.unwrap_err();
    assert!(refused.to_string().contains("a bad pod"), "{refused}");
    assert_eq!(notes.lines(), ["configured", "0 pods", "run bad"]);
    let cx = notes.context.lock().unwrap().clone().unwrap();
    assert_eq!(cx.runtime_info().name, "test");
    assert!(cx.time_left().is_some());
    // It has no connection for requests, and reports that at once.
    let asked = cx.runtime().evict("e", "a test").await;
    assert!(matches!(asked, Err(CallError::Lost(_))), "{asked:?}");
}
