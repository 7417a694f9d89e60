//! An adaptation with plugins on one transport, and operations on it.

use std::collections::BTreeMap;

use nri::{Adaptation, Delivery, Handlers, Outcome, PluginSettings, proto::*, stub::Stub};

use crate::common::{Place, container, pod, until_active};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    StateChange,
    Dedicated,
    InProcess,
}

/// An adaptation with its plugins, all of them active.
pub(crate) struct World {
    pub nri: Adaptation,
    pub place: Place,
    /// The connections end with them.
    _stubs: Vec<Stub>,
}

pub(crate) type Settings = BTreeMap<nri::PluginId, PluginSettings>;

pub(crate) async fn world(transport: Transport, plugins: Vec<(&str, Handlers)>) -> World {
    world_with(transport, Settings::new(), plugins).await
}

pub(crate) async fn world_with(
    transport: Transport,
    settings: Settings,
    plugins: Vec<(&str, Handlers)>,
) -> World {
    let place = Place::new();
    let mut builder = place.builder().plugins(settings);
    if transport == Transport::InProcess {
        for (id, handlers) in plugins {
            builder = builder.in_process(id.parse().unwrap(), handlers);
        }
        let nri = builder.start().await.unwrap();
        return World {
            nri,
            place,
            _stubs: Vec::new(),
        };
    }
    let nri = builder.start().await.unwrap();
    let mut stubs = Vec::new();
    for (id, handlers) in plugins {
        stubs.push(connect(transport, &place, id, handlers).await);
        until_active(&nri, id).await;
    }
    World {
        nri,
        place,
        _stubs: stubs,
    }
}

pub(crate) async fn connect(
    transport: Transport,
    place: &Place,
    id: &str,
    handlers: Handlers,
) -> Stub {
    let (index, name) = id.split_once('-').unwrap();
    let stub = Stub::builder(handlers)
        .index(index)
        .name(name)
        .socket(place.socket());
    let mut stub = match transport {
        Transport::StateChange => stub.state_change_only(),
        Transport::Dedicated | Transport::InProcess => stub,
    };
    stub.start().await.unwrap()
}

pub(crate) fn settings(id: &str, change: impl FnOnce(&mut PluginSettings)) -> Settings {
    let mut settings = PluginSettings::default();
    change(&mut settings);
    Settings::from([(id.parse().unwrap(), settings)])
}

pub(crate) fn outcome<'a>(deliveries: &'a [Delivery], plugin: &str) -> &'a Outcome {
    let found = deliveries.iter().find(|d| d.plugin.to_string() == plugin);
    &found
        .unwrap_or_else(|| panic!("{plugin} is not in {deliveries:?}"))
        .outcome
}

pub(crate) fn annotate(key: &'static str, value: &'static str) -> ContainerAdjustment {
    ContainerAdjustment {
        annotations: BTreeMap::from([(key.into(), value.into())]),
        ..Default::default()
    }
}

/// A plugin that returns this adjustment for each container.
pub(crate) fn adjuster(adjust: ContainerAdjustment) -> Handlers {
    Handlers::new().create_container(move |_, _| {
        let adjust = adjust.clone();
        async move { Ok((Some(adjust), Vec::new())) }
    })
}

pub(crate) fn shares(container: &str, shares: u64) -> ContainerUpdate {
    let cpu = LinuxCpu {
        shares: Some(OptionalUInt64 { value: shares }),
        ..Default::default()
    };
    ContainerUpdate {
        container_id: container.into(),
        linux: Some(LinuxContainerUpdate {
            resources: Some(LinuxResources {
                cpu: Some(cpu),
                ..Default::default()
            }),
        }),
        ignore_failure: false,
    }
}

/// Runs a complete life of a pod with one container; returns the names of the events.
pub(crate) async fn whole_life(nri: &Adaptation) -> Vec<&'static str> {
    let (p, c) = (|| pod("p"), || container("c", "p"));
    let none = LinuxResources::default;
    nri.run_pod_sandbox(p()).await.unwrap();
    nri.update_pod_sandbox(p(), none(), none()).await.unwrap();
    nri.post_update_pod_sandbox(p()).await;
    let turn = nri.turn(Event::CreateContainer).await;
    nri.create_container(&turn, p(), c()).await.unwrap();
    nri.post_create_container(p(), c()).await;
    nri.start_container(p(), c()).await.unwrap();
    nri.post_start_container(p(), c()).await;
    nri.update_container(&turn, p(), c(), none()).await.unwrap();
    nri.post_update_container(p(), c()).await;
    nri.stop_container(&turn, p(), c()).await;
    nri.remove_container(p(), c()).await;
    nri.stop_pod_sandbox(p()).await;
    nri.remove_pod_sandbox(p()).await;
    vec![
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
    ]
}

/// Sends the teardown and notification events; returns the plugins' results for each.
pub(crate) async fn teardown(nri: &Adaptation) -> Vec<Vec<Delivery>> {
    let (p, c) = (|| pod("p"), || container("c", "p"));
    let turn = nri.turn(Event::CreateContainer).await;
    vec![
        nri.post_update_pod_sandbox(p()).await.deliveries,
        nri.post_create_container(p(), c()).await.deliveries,
        nri.post_start_container(p(), c()).await.deliveries,
        nri.post_update_container(p(), c()).await.deliveries,
        nri.stop_container(&turn, p(), c()).await.deliveries,
        nri.remove_container(p(), c()).await.deliveries,
        nri.stop_pod_sandbox(p()).await.deliveries,
        nri.remove_pod_sandbox(p()).await.deliveries,
    ]
}

/// A plugin that fails every event.
pub(crate) fn failing() -> Handlers {
    macro_rules! fail {
        ($($name:ident($($arg:ident),*))*) => {
            Handlers::new()$(.$name(|$($arg),*| async move {
                let _ = ($($arg),*);
                Err("it will not".into())
            }))*
        };
    }
    fail! {
        run_pod_sandbox(p) post_update_pod_sandbox(p) stop_pod_sandbox(p) remove_pod_sandbox(p)
        update_pod_sandbox(p, o, r)
        create_container(p, c) post_create_container(p, c) start_container(p, c)
        post_start_container(p, c) update_container(p, c, r) post_update_container(p, c)
        stop_container(p, c) remove_container(p, c)
    }
}
