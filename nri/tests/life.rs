//! The whole way over a real socket: a plugin registers, is told of a life, and adjusts a container.

mod common;

use std::collections::BTreeMap;

use common::{Place, Record, container, pod, until, until_active};
use nri::{Handlers, proto::*, stub::Stub};

#[tokio::test]
async fn a_plugin_registers_and_adjusts_a_container() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let handlers = Handlers::new()
        .run_pod_sandbox(|_| async { Ok(()) })
        .create_container(|_, c| async move {
            let adjust = ContainerAdjustment {
                annotations: BTreeMap::from([("seen".into(), c.name)]),
                ..Default::default()
            };
            Ok((Some(adjust), Vec::new()))
        });
    let stub = Stub::builder(handlers)
        .name("adjuster")
        .index("10")
        .socket(place.socket())
        .start()
        .await
        .unwrap();
    assert_eq!(stub.runtime_info().name, "test");
    until_active(&nri, "10-adjuster").await;

    nri.run_pod_sandbox(pod("p1")).await.unwrap();
    let turn = nri.turn(Event::CreateContainer).await;
    let created = nri
        .create_container(&turn, pod("p1"), container("c1", "p1"))
        .await
        .unwrap();
    assert_eq!(created.merged.adjust.annotations["seen"], "name-of-c1");
    let owners = created.merged.owners.container("c1").unwrap();
    assert_eq!(
        owners
            .owner_of(Field::Annotations, "seen")
            .unwrap()
            .to_string(),
        "10-adjuster"
    );
    nri.shutdown("test is over").await;
    until("the stub notices", || !place.socket().exists()).await;
}

#[tokio::test]
async fn all_thirteen_events_arrive_in_order() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let record = Record::default();
    let _stub = Stub::builder(record.handlers())
        .name("all")
        .index("00")
        .socket(place.socket())
        .start()
        .await
        .unwrap();
    until_active(&nri, "00-all").await;
    let (p, c) = (|| pod("p"), || container("c", "p"));
    nri.run_pod_sandbox(p()).await.unwrap();
    nri.update_pod_sandbox(p(), LinuxResources::default(), LinuxResources::default())
        .await
        .unwrap();
    nri.post_update_pod_sandbox(p()).await;
    let turn = nri.turn(Event::CreateContainer).await;
    nri.create_container(&turn, p(), c()).await.unwrap();
    nri.post_create_container(p(), c()).await;
    nri.start_container(p(), c()).await.unwrap();
    nri.post_start_container(p(), c()).await;
    nri.update_container(&turn, p(), c(), LinuxResources::default())
        .await
        .unwrap();
    nri.post_update_container(p(), c()).await;
    nri.stop_container(&turn, p(), c()).await;
    nri.remove_container(p(), c()).await;
    nri.stop_pod_sandbox(p()).await;
    nri.remove_pod_sandbox(p()).await;
    let expected = [
        "Synchronize",
        "RunPodSandbox p",
        "UpdatePodSandbox p",
        "PostUpdatePodSandbox p",
        "CreateContainer p c",
        "PostCreateContainer p c",
        "StartContainer p c",
        "PostStartContainer p c",
        "UpdateContainer p c",
        "PostUpdateContainer p c",
        "StopContainer p c",
        "RemoveContainer p c",
        "StopPodSandbox p",
        "RemovePodSandbox p",
    ];
    assert_eq!(record.lines(), expected);
}
