//! G-22 to G-24: plugins that connect during operations.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use nri::proto::Event;
use tokio::sync::Semaphore;

use crate::{
    cri::SLEEPER,
    point::{Point, points},
    stage::Stage,
};
use testkit::{
    plugin::{Behavior, Plugin},
    verdict::{Answer, Checked, miss, same, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "G-22/lists-what-is-there" "a plugin that connects late gets the existing pods and containers" lists_what_is_there;
        Slow "G-22/none-twice-none-missed" "under load, each container is in the list of a joining plugin or comes as an event: none twice, none missed" none_twice;
        Fast "G-22/joins-during-a-creation" "a container that is being created comes as an event, or in the list: not both" held_in_create;
        Slow "G-22/split" "a list that is longer than a message comes in parts, whole" split;
        Fast "G-22/states" "the list has the states of containers" states;
        Fast "G-23/stopped-pods-are-listed" "a stopped pod is listed, and gets only RemovePodSandbox" stopped_pods;
        Fast "G-23/exited-containers-are-not-listed" "a container that has exited is not listed, and its removal comes" exited_containers;
        Fast "G-24/others-go-on" "while a plugin is in Synchronize, events that are not its own go on" others_go_on;
    }
}

/// Returns the names of the point's own pods and containers in a plugin's list.
async fn listed(s: &Stage, plugin: &Plugin) -> Checked<(Vec<String>, Vec<String>)> {
    let (pods, containers) = plugin.synchronised().await?;
    let own: BTreeMap<String, String> = pods
        .into_iter()
        .filter(|pod| pod.name.starts_with(&s.journal.prefix))
        .map(|pod| (pod.id, pod.name))
        .collect();
    let containers = containers
        .into_iter()
        .filter(|c| own.contains_key(&c.pod_sandbox_id))
        .map(|c| c.name);
    let mut containers: Vec<String> = containers.collect();
    containers.sort();
    let short = |name: String| name.replacen(&s.journal.prefix, "", 1);
    let mut pods: Vec<String> = own.into_values().map(short).collect();
    pods.sort();
    Ok((pods, containers))
}

async fn lists_what_is_there(s: &Stage) -> Checked {
    let (pod, _) = s.sleeper("p").await?;
    pod.created("created").await?;
    s.pod("q").await?;
    let late = s.plugin("10", "late").await?;
    let (pods, containers) = listed(s, &late).await?;
    same("pods", ["p", "q"].map(String::from).to_vec(), pods)?;
    same(
        "containers",
        ["c", "created"].map(String::from).to_vec(),
        containers,
    )
}

async fn states(s: &Stage) -> Checked {
    let (pod, running) = s.sleeper("p").await?;
    let created = pod.created("created").await?;
    let late = s.plugin("10", "late").await?;
    let (_, containers) = late.synchronised().await?;
    for (id, state) in [
        (running.id, nri::proto::ContainerState::ContainerRunning),
        (created.id, nri::proto::ContainerState::ContainerCreated),
    ] {
        let reported = containers.iter().find(|c| c.id == id).map(|c| c.state);
        same("state", Some(state as i32), reported)?;
    }
    Ok(())
}

async fn none_twice(s: &Stage) -> Checked {
    let pod = s.pod("p").await?;
    let calls: Vec<_> = (0..40)
        .map(|n| {
            let pod = pod.clone();
            s.call(async move { pod.create(&format!("c{n}"), &SLEEPER).await })
        })
        .collect();
    let mut joined = Vec::new();
    for n in 0..4 {
        // Each plugin joins at a different moment of the load.
        tokio::time::sleep(Duration::from_millis(60)).await;
        joined.push(s.plugin("10", &format!("late{n}")).await?);
    }
    let mut all = BTreeSet::new();
    for call in calls {
        match call.await {
            Ok(created) => all.insert(created.succeeds("CreateContainer")?.id),
            Err(error) => return miss("CreateContainer is called", error),
        };
    }
    for plugin in &joined {
        let (_, listed) = plugin.synchronised().await?;
        let listed = listed.into_iter().map(|c| c.id);
        let reported = plugin.seen().into_iter();
        let reported = reported.filter(|seen| seen.event == Event::CreateContainer);
        let reported = reported.map(|seen| seen.container_id().to_owned());
        let known: Vec<String> = listed
            .chain(reported)
            .filter(|id| all.contains(id))
            .collect();
        let once: BTreeSet<&String> = known.iter().collect();
        that(
            known.len() == once.len(),
            format!("{} gets no container twice", plugin.id()),
            format!("{} of {}", known.len() - once.len(), all.len()),
        )?;
        that(
            once.len() == all.len(),
            format!("{} misses no container", plugin.id()),
            format!("{} of {}", all.len() - once.len(), all.len()),
        )?;
    }
    Ok(())
}

async fn held_in_create(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    let call = async move { pod.create("c", &SLEEPER).await };
    let hook = s.hold(&plugin, Event::CreateContainer, "p/c", call).await?;
    let late = s.wanted("20", "late").try_start().await;
    let late = late.or_else(|why| miss("a plugin connects while another blocks", why))?;
    let id = hook.seen.container_id().to_owned();
    hook.passes("CreateContainer").await?;
    let (_, listed) = late.synchronised().await?;
    let in_list = usize::from(listed.iter().any(|c| c.id == id));
    let events = late.count(Event::CreateContainer, "p/c");
    same(
        "times that the late plugin gets the container",
        1,
        in_list + events,
    )
}

async fn split(s: &Stage) -> Checked {
    // Together these exceed the four megabytes of one message.
    const PODS: usize = 24;
    let ballast = "x".repeat(200 << 10);
    for n in 0..PODS {
        let mut config = s.pod_config(&format!("p{n:02}"));
        let ballast = ("nri-contract.ballast".to_owned(), ballast.clone());
        config.annotations.extend([ballast]);
        s.cri().run(config).await.succeeds("RunPodSandbox")?;
    }
    let late = s.plugin("10", "late").await?;
    let (pods, _) = listed(s, &late).await?;
    same("pods in the list", PODS, pods.len())?;
    let (pods, _) = late.synchronised().await?;
    let whole = pods
        .iter()
        .filter(|pod| pod.name.starts_with(&s.journal.prefix));
    let whole = whole.filter(|pod| pod.annotations.values().any(|v| v.len() == ballast.len()));
    same("of them with all of their annotations", PODS, whole.count())
}

async fn stopped_pods(s: &Stage) -> Checked {
    let pod = s.pod("p").await?;
    pod.stop().await.succeeds("StopPodSandbox")?;
    let late = s.plugin("10", "late").await?;
    let (pods, _) = listed(s, &late).await?;
    same("pods", vec!["p".to_owned()], pods)?;
    pod.remove().await.succeeds("RemovePodSandbox")?;
    late.sees(Event::RemovePodSandbox, "p").await?;
    same(
        "its events",
        vec!["RemovePodSandbox p".to_owned()],
        late.lines(),
    )
}

async fn exited_containers(s: &Stage) -> Checked {
    let (pod, container) = s.sleeper("p").await?;
    container.stop().await.succeeds("StopContainer")?;
    pod.start("runs", &SLEEPER)
        .await
        .succeeds("a container's start")?;
    let late = s.plugin("10", "late").await?;
    let (_, containers) = listed(s, &late).await?;
    same("containers", vec!["runs".to_owned()], containers)?;
    container.remove().await.succeeds("RemoveContainer")?;
    late.sees(Event::RemoveContainer, "p/c").await.map(drop)
}

async fn others_go_on(s: &Stage) -> Checked {
    let gate = Arc::new(Semaphore::new(0));
    let pod = s.pod("before").await?;
    let late = s
        .wanted("10", "late")
        .events(&[Event::PostUpdateContainer])
        .at_synchronize(Behavior::Wait(gate.clone()));
    let late = late.try_start().await;
    let late = late.or_else(|why| miss("the plugin is configured", why))?;
    late.synchronised().await?;
    let started = tokio::time::timeout(s.run.request_timeout / 2, async {
        s.cri().run(s.pod_config("p")).await?;
        pod.start("c", &SLEEPER).await
    });
    let started = started.await;
    gate.add_permits(1_000);
    match started {
        Ok(answer) => answer
            .succeeds("a pod, and a container of another")
            .map(drop),
        Err(_) => {
            s.hurry();
            miss(
                "a pod runs, and a container starts, while a plugin is in Synchronize",
                format!("not within {:?}", s.run.request_timeout / 2),
            )
        }
    }
}
