//! G-01 to G-05, and G-25: the order of calls.

use std::collections::BTreeSet;

use nri::proto::Event;

use crate::{
    cri::SLEEPER,
    point::{Point, points},
    stage::{PATIENCE, Stage},
};
use testkit::{
    plugin::Plugin,
    verdict::{Answer, Checked, miss, same},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "G-01/by-index" "plugins are called by index, in any order of joining" by_index;
        Fast "G-01/equal-index" "of plugins with one index, the one that joined first is called first" equal_index;
        Fast "G-01/one-after-the-other" "the second plugin is asked when the first has answered" one_after_the_other;
        Fast "G-02/one-at-a-time" "a plugin gets one event at a time, also of many pods" one_at_a_time;
        Fast "G-03/order-of-a-life" "the events of a pod and of a container come once, in the order of their life" order_of_a_life;
        Fast "G-03/stop-waits-for-run" "a pod's next event is sent when the one before was answered" answered_before_the_next;
        Fast "G-04/ids-are-not-used-again" "each sandbox has a new id, also one of the same name" new_ids;
        Fast "G-04/a-stopped-pod-stays-stopped" "a stopped sandbox takes no containers any more" stays_stopped;
        Fast "G-25/one-creation-at-a-time" "while a container is being created, plugins are not asked about another one, also of another pod" one_turn;
        Fast "G-25/other-pods-go-on" "while a plugin delays RunPodSandbox of a pod, another pod runs and starts containers" other_pods_go_on;
    }
}

/// Returns the plugins in the order in which they got the event.
fn callees(s: &Stage, event: Event) -> Vec<String> {
    let all = s.journal.all();
    let of = all.into_iter().filter(|seen| seen.event == event);
    of.map(|seen| seen.plugin).collect()
}

async fn called_in_order(s: &Stage, plugins: &[&Plugin]) -> Checked {
    let (pod, _) = s.sleeper("p").await?;
    pod.ends().await?;
    for plugin in plugins {
        plugin.sees(Event::RemovePodSandbox, "p").await?;
    }
    let expected: Vec<String> = plugins.iter().map(|p| p.id().to_owned()).collect();
    for event in [
        Event::RunPodSandbox,
        Event::CreateContainer,
        Event::StartContainer,
        Event::StopContainer,
        Event::StopPodSandbox,
        Event::RemovePodSandbox,
    ] {
        same(
            &format!("plugins called for {event:?}"),
            &expected,
            &callees(s, event),
        )?;
    }
    Ok(())
}

async fn by_index(s: &Stage) -> Checked {
    let last = s.plugin("90", "a").await?;
    let first = s.plugin("05", "c").await?;
    let middle = s.plugin("50", "b").await?;
    called_in_order(s, &[&first, &middle, &last]).await
}

async fn equal_index(s: &Stage) -> Checked {
    let first = s.plugin("50", "z").await?;
    let second = s.plugin("50", "a").await?;
    called_in_order(s, &[&first, &second]).await
}

async fn one_after_the_other(s: &Stage) -> Checked {
    let (first, second) = (s.plugin("10", "a").await?, s.plugin("20", "b").await?);
    let hook = s.hold_run(&first, s.pod_config("p")).await?;
    tokio::time::sleep(super::run::QUIET).await;
    let early = second.count(Event::RunPodSandbox, "p");
    same("RunPodSandbox at the second plugin meanwhile", 0, early)?;
    hook.passes("RunPodSandbox").await?;
    same("and afterwards", 1, second.count(Event::RunPodSandbox, "p"))
}

async fn one_at_a_time(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let calls: Vec<_> = (0..6)
        .map(|n| {
            let (cri, config) = (s.cri(), s.pod_config(&format!("p{n}")));
            s.call(async move {
                let pod = cri.run(config).await?;
                pod.start("c", &["true"]).await?;
                pod.end().await
            })
        })
        .collect();
    for call in calls {
        let ended = tokio::time::timeout(2 * PATIENCE, call).await;
        match ended {
            Ok(Ok(ended)) => ended.succeeds("a pod's whole life")?,
            _ => return miss("a pod's whole life ends", "it does not"),
        }
    }
    same("the most events at once", 1, plugin.most_at_once())
}

async fn order_of_a_life(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, container) = s.sleeper("p").await?;
    let change = testkit::cri::LinuxContainerResources {
        cpu_shares: 300,
        ..Default::default()
    };
    let updated = container.update(change).await;
    updated.succeeds("UpdateContainerResources")?;
    container.stop().await.succeeds("StopContainer")?;
    container.remove().await.succeeds("RemoveContainer")?;
    pod.ends().await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    let expected = [
        "RunPodSandbox p",
        "CreateContainer p/c",
        "PostCreateContainer p/c",
        "StartContainer p/c",
        "PostStartContainer p/c",
        "UpdateContainer p/c",
        "PostUpdateContainer p/c",
        "StopContainer p/c",
        "RemoveContainer p/c",
        "StopPodSandbox p",
        "RemovePodSandbox p",
    ];
    plugin.was_notified(&expected)
}

async fn answered_before_the_next(s: &Stage) -> Checked {
    let (plugin, other) = (s.plugin("10", "a").await?, s.plugin("20", "b").await?);
    let pod = s.pod("p").await?;
    let held = pod.clone();
    let call = async move { held.stop().await };
    let hook = s.hold(&other, Event::StopPodSandbox, "p", call).await?;
    let removal = s.call(async move { pod.remove().await });
    tokio::time::sleep(super::run::QUIET).await;
    let early = plugin.count(Event::RemovePodSandbox, "p");
    same(
        "RemovePodSandbox while a plugin is in StopPodSandbox",
        0,
        early,
    )?;
    // A removal may overtake this stop, so both answers are correct: only the order matters.
    let _ = hook.returns().await?;
    let _ = removal.await;
    plugin.sees(Event::RemovePodSandbox, "p").await.map(drop)
}

async fn new_ids(s: &Stage) -> Checked {
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        let pod = s.pod("p").await?;
        pod.ends().await?;
        ids.insert(pod.id);
    }
    same("ids of three sandboxes", 3, ids.len())
}

async fn stays_stopped(s: &Stage) -> Checked {
    let (pod, container) = s.sleeper("p").await?;
    pod.stop().await.succeeds("StopPodSandbox")?;
    pod.create("d", &SLEEPER)
        .await
        .fails("CreateContainer in a stopped pod")?;
    container
        .start()
        .await
        .fails("StartContainer in a stopped pod")
        .map(drop)
}

async fn one_turn(s: &Stage) -> Checked {
    let (first, second) = (s.plugin("10", "a").await?, s.plugin("20", "b").await?);
    let (p, q) = (s.pod("p").await?, s.pod("q").await?);
    let call = async move { p.create("c", &SLEEPER).await };
    let hook = s.hold(&second, Event::CreateContainer, "p/c", call).await?;
    let other = s.call(async move { q.create("c", &SLEEPER).await });
    tokio::time::sleep(super::run::QUIET).await;
    let early = first.count(Event::CreateContainer, "q/c");
    same(
        "CreateContainer of q/c at the first plugin while the second is in that of p/c",
        0,
        early,
    )?;
    hook.passes("CreateContainer").await?;
    match other.await {
        Ok(created) => created.succeeds("CreateContainer of the other")?,
        Err(error) => return miss("CreateContainer of the other is made", error),
    };
    first.sees(Event::CreateContainer, "q/c").await.map(drop)
}

async fn other_pods_go_on(s: &Stage) -> Checked {
    let run = &[Event::RunPodSandbox];
    let plugin = s.wanted("10", "a").events(run).join().await?;
    let hook = s.hold_run(&plugin, s.pod_config("held")).await?;
    // The plugin also gets the event of the other pod, so run that one first.
    let before = hook.returns().await?.succeeds("RunPodSandbox")?;
    let hook = s.hold_run(&plugin, s.pod_config("p")).await?;
    let limit = s.run.request_timeout / 2;
    let started = tokio::time::timeout(limit, before.start("c", &SLEEPER)).await;
    let _ = hook.returns().await;
    match started {
        Ok(started) => started
            .succeeds("a container's start in another pod")
            .map(drop),
        Err(_) => {
            s.hurry();
            miss(
                "a container of another pod is created and started while the hook blocks",
                format!("not within {limit:?}"),
            )
        }
    }
}
