//! Plugins on each generation of the Go stub: v0.2 (handlers without a context), v0.6 (with a
//! context) and v0.11 (with pod updates), which get plain events as `StateChange`; the newest, with
//! one call per event. `tests/go/*.mod` pins the versions.

mod common;

use std::{collections::BTreeMap, time::Duration};

use common::{
    Place, container,
    go::{Program, go_plugin},
    pod, until, until_active,
};
use nri::{Adaptation, PluginEvent, Snapshot, proto::*};

/// The events of a complete life, and whether each has a `StateChange` (NRI-330).
const LIFE: [(&str, Option<Event>); 14] = [
    ("RunPodSandbox p", Some(Event::RunPodSandbox)),
    ("UpdatePodSandbox p", None),
    ("PostUpdatePodSandbox p", Some(Event::PostUpdatePodSandbox)),
    ("CreateContainer p c", None),
    ("PostCreateContainer p c", Some(Event::PostCreateContainer)),
    ("StartContainer p c", Some(Event::StartContainer)),
    ("PostStartContainer p c", Some(Event::PostStartContainer)),
    ("UpdateContainer p c", None),
    ("PostUpdateContainer p c", Some(Event::PostUpdateContainer)),
    ("StopContainer p c", None),
    ("RemoveContainer p c", Some(Event::RemoveContainer)),
    // A second container, which the plugin vetoes.
    ("CreateContainer p c", None),
    ("StopPodSandbox p", Some(Event::StopPodSandbox)),
    ("RemovePodSandbox p", Some(Event::RemovePodSandbox)),
];

struct Generation {
    program: &'static str,
    /// It gets plain events only as `StateChange`.
    old: bool,
    /// It does not know updates of pods.
    without_pod_updates: bool,
}

const GENERATIONS: [Generation; 4] = [
    Generation {
        program: "v0.2",
        old: true,
        without_pod_updates: true,
    },
    Generation {
        program: "v0.6",
        old: true,
        without_pod_updates: true,
    },
    Generation {
        program: "v0.11",
        old: true,
        without_pod_updates: false,
    },
    Generation {
        program: "plugin",
        old: false,
        without_pod_updates: false,
    },
];

impl Generation {
    fn life(&self) -> Vec<(&'static str, Option<Event>)> {
        let reported = |line: &str| !(self.without_pod_updates && line.contains("UpdatePod"));
        LIFE.into_iter()
            .filter(|(line, _)| reported(line))
            .collect()
    }
}

/// Sends all thirteen events of a pod and a container, and the creation of a second container,
/// which is vetoed.
async fn live(nri: &Adaptation) {
    let (p, c) = (|| pod("p"), || container("c", "p"));
    let none = LinuxResources::default;
    nri.run_pod_sandbox(p()).await.unwrap();
    nri.update_pod_sandbox(p(), none(), none()).await.unwrap();
    nri.post_update_pod_sandbox(p()).await;
    {
        let turn = nri.turn(Event::CreateContainer).await;
        let merged = nri.create_container(&turn, p(), c()).await.unwrap().merged;
        assert_eq!(merged.adjust.annotations["go"], "was here");
        assert_eq!(merged.adjust.env[0].key, "GO");
        nri.post_create_container(p(), c()).await;
        nri.start_container(p(), c()).await.unwrap();
        nri.post_start_container(p(), c()).await;
        let updated = nri.update_container(&turn, p(), c(), none()).await.unwrap();
        let shares = updated.merged.target.unwrap().cpu.unwrap().shares.unwrap();
        assert_eq!(shares.value, 1234);
        nri.post_update_container(p(), c()).await;
        nri.stop_container(&turn, p(), c()).await;
        nri.remove_container(p(), c()).await;
        let vetoed = Container {
            name: "veto".into(),
            ..c()
        };
        let refused = nri.create_container(&turn, p(), vetoed).await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("vetoed on demand"), "{refused}");
    }
    nri.stop_pod_sandbox(p()).await;
    nri.remove_pod_sandbox(p()).await;
}

/// Waits for the lines of two lives and returns them.
async fn two_lives(go: &Program) -> Vec<String> {
    go.says_times("RemovePodSandbox p", 2).await;
    go.lines()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_generation_of_the_go_stub_is_told_of_each_event_once_in_its_own_way() {
    for generation in GENERATIONS {
        let program = generation.program;
        let place = Place::new();
        let nri = place.builder().start().await.unwrap();
        let Some(go) = go_plugin(program, &place, "10", &[]) else {
            return;
        };
        until_active(&nri, "10-go").await;
        live(&nri).await;
        live(&nri).await;
        let mut expected = vec![
            "Configure \"\" test v1.2.3",
            "Synchronize 0 pods 0 containers 0 bytes",
        ];
        let life = generation.life();
        expected.extend([&life[..], &life].concat().iter().map(|(line, _)| line));
        assert_eq!(two_lives(&go).await, expected, "{program}");
        assert_eq!(nri.plugins()[0].old_style, generation.old, "{program}");
        // In two lives: one notice for each event that was sent as StateChange, and none for
        // others.
        let mut noticed = BTreeMap::new();
        for (_, event) in place.seen.plugins.lock().unwrap().iter() {
            if let PluginEvent::Deprecated { event } = event {
                *noticed.entry(*event as i32).or_insert(0) += 1;
            }
        }
        let fallback = life.iter().filter_map(|(_, event)| *event);
        let expected: BTreeMap<i32, i32> = if generation.old {
            fallback.map(|event| (event as i32, 1)).collect()
        } else {
            BTreeMap::new()
        };
        assert_eq!(noticed, expected, "{program}");
        drop(go);
        until("it has ended", || common::there(&nri).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stubs_from_before_split_lists_take_short_ones_and_are_closed_at_long_ones() {
    for (program, takes_parts) in [("v0.2", false), ("v0.6", false), ("v0.11", true)] {
        let place = Place::new();
        *place.runtime.all.lock().unwrap() = Snapshot {
            pods: (0..100).map(|n| pod(&format!("p{n}"))).collect(),
            containers: Vec::new(),
        };
        let nri = place.builder().start().await.unwrap();
        let Some(go) = go_plugin(program, &place, "10", &[]) else {
            return;
        };
        until_active(&nri, "10-go").await;
        let short = "Synchronize 100 pods 0 containers 0 bytes";
        assert_eq!(go.says("Synchronize").await, short, "{program}");
        drop((go, nri));

        let place = Place::new();
        let pad = BTreeMap::from([("pad".into(), "x".repeat(100_000))]);
        let pods = (0..100).map(|n| PodSandbox {
            annotations: pad.clone(),
            ..pod(&format!("p{n}"))
        });
        *place.runtime.all.lock().unwrap() = Snapshot {
            pods: pods.collect(),
            containers: Vec::new(),
        };
        let builder = place.builder().request_timeout(Duration::from_secs(2));
        let nri = builder.start().await.unwrap();
        let Some(go) = go_plugin(program, &place, "10", &[]) else {
            return;
        };
        if takes_parts {
            until_active(&nri, "10-go").await;
            let long = "Synchronize 100 pods 0 containers 10000000 bytes";
            assert_eq!(go.says("Synchronize").await, long, "{program}");
        } else {
            let refused = |event: &PluginEvent| matches!(event, PluginEvent::Rejected { reason } if reason.contains("cannot take the list in parts"));
            until(program, || place.seen.saw("10-go", refused)).await;
            until("it has ended", || common::there(&nri).is_empty()).await;
        }
    }
}
