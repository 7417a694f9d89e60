//! C-06, C-07, C-10 and C-11.

use std::fs;

use nri::proto::Event;
use testkit::cri::ContainerState;

use super::{
    create::{LIMIT, is_limited, limit, memory_of, pid_of},
    run::QUIET,
};
use crate::{
    cri::SLEEPER,
    look::{self, Kind},
    point::{Point, points},
    stage::{PATIENCE, Stage, eventually},
};
use testkit::{
    journal::listed,
    plugin::{Behavior, Plugin},
    verdict::{Answer, Checked, done, same, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "C-06.1/process-is-made" "in StartContainer, pid is a process in the pod's network namespace" process_is_made;
        Fast "C-06.1/program-has-not-run" "in StartContainer, the program has not run" program_has_not_run;
        Fast "C-06.1/cgroup-is-made" "in StartContainer, the process is in its cgroup, with its limits" cgroup_is_made;
        Fast "C-06.2/veto" "after an error the container is EXITED, its process has ended, and StopContainer follows" veto;
        Fast "C-06.2/reason" "after an error the reason in the status is StartError" reason;
        Fast "C-06.3/a-failed-start" "StopContainer reports a start that fails by itself" failed_start;
        Fast "C-07.1/running" "in PostStartContainer, the program runs and the container is RUNNING" running;
        Fast "C-07.2/end-after-the-beginning" "a container that ends at once gets StopContainer after PostStartContainer" end_after_beginning;
        Fast "C-10.1/stopped-by-cri" "StopContainer once, when CRI stops and removes it" stopped_by_cri;
        Fast "C-10.1/exited-by-itself" "StopContainer once, when it exited by itself and is stopped and removed" exited_by_itself;
        Fast "C-10.1/stopped-by-its-pod" "StopContainer once, when its pod is stopped and removed" stopped_by_its_pod;
        Fast "C-10.2/an-exit-by-itself" "an exit by itself is reported without any CRI call" reported_without_a_call;
        Fast "C-10.3/before-the-pods-stop" "StopContainer is answered before the pod's StopPodSandbox is sent" before_the_pods_stop;
        Fast "C-10.4/updates-of-others" "updates of other containers in an answer to StopContainer are applied" updates_of_others;
        Fast "C-10.4/the-first-holds" "of two updates that set the same, the first plugin's holds, and the stop succeeds" the_first_holds;
        Fast "C-11.1/still-there" "in RemoveContainer, the container is still listed" still_there;
        Fast "C-11.2/stop-came-before" "StopContainer came before RemoveContainer, also for a container that never ran" stop_came_before;
    }
}

async fn process_is_made(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    let container = pod.created("c").await?;
    let call = async move { container.start().await };
    let hook = s.hold(&plugin, Event::StartContainer, "p/c", call).await?;
    let pid = pid_of(&plugin, "p/c").await?;
    that(
        look::runs(pid),
        "pid is a process",
        format!("{pid} is none"),
    )?;
    let own = fs::read_link(format!("/proc/{pid}/ns/net"));
    let own = done("its network namespace can be read", own)?;
    let path = look::path_of(&hook.seen.pod, Kind::Network)?;
    let pods = look::inside(path, Kind::Network, || {
        fs::read_link("/proc/thread-self/ns/net")
    });
    let pods = done("the pod's network namespace can be entered", pods.await)?;
    same("the process's network namespace", pods, own)?;
    hook.passes("StartContainer").await
}

/// A container whose program writes a file on the host at its start.
async fn witness(
    s: &Stage,
    pod: &crate::cri::Pod,
) -> Checked<(crate::cri::Container, std::path::PathBuf)> {
    let dir = s.directory()?;
    let script = "echo ran > /witness/ran; sleep 1000";
    let mut config = pod.cri.container_config("c", &["sh", "-c", script]);
    config.mounts = vec![testkit::cri::Mount {
        host_path: dir.display().to_string(),
        container_path: "/witness".into(),
        ..Default::default()
    }];
    let container = pod.create_with(config).await.succeeds("CreateContainer")?;
    Ok((container, dir.join("ran")))
}

async fn program_has_not_run(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    let (container, ran) = witness(s, &pod).await?;
    let call = async move { container.start().await };
    let hook = s.hold(&plugin, Event::StartContainer, "p/c", call).await?;
    tokio::time::sleep(QUIET).await;
    that(
        !ran.exists(),
        "the program has not run",
        "it has written its file",
    )?;
    hook.passes("StartContainer").await?;
    eventually("the program runs afterwards", || async {
        ran.exists()
            .then_some(())
            .ok_or_else(|| "no file of it".to_owned())
    })
    .await
}

async fn cgroup_is_made(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    let mut config = pod.cri.container_config("c", &SLEEPER);
    let resources = testkit::cri::LinuxContainerResources {
        memory_limit_in_bytes: LIMIT,
        ..Default::default()
    };
    config.linux.get_or_insert_default().resources = Some(resources);
    let container = pod.create_with(config).await.succeeds("CreateContainer")?;
    let call = async move { container.start().await };
    let hook = s.hold(&plugin, Event::StartContainer, "p/c", call).await?;
    let pid = pid_of(&plugin, "p/c").await?;
    let seen = memory_of(pid);
    same(
        "memory limit of the process's cgroup",
        Some(LIMIT.to_string()),
        seen,
    )?;
    hook.passes("StartContainer").await
}

async fn vetoed(s: &Stage, plugin: &Plugin) -> Checked<crate::cri::Container> {
    let pod = s.pod("p").await?;
    let container = pod.created("c").await?;
    plugin.does(
        Event::StartContainer,
        Behavior::Error("not this one".into()),
    );
    container.start().await.fails("StartContainer")?;
    Ok(container)
}

async fn veto(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let container = vetoed(s, &plugin).await?;
    plugin.sees(Event::StopContainer, "p/c").await?;
    let state = container.state().await.succeeds("ContainerStatus")?;
    same("state", ContainerState::ContainerExited, state)?;
    let pid = pid_of(&plugin, "p/c").await?;
    that(
        !look::runs(pid),
        "the process is gone",
        format!("{pid} runs"),
    )?;
    let post = plugin.count(Event::PostStartContainer, "p/c");
    same("PostStartContainer events", 0, post)
}

async fn reason(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let container = vetoed(s, &plugin).await?;
    let status = container.status().await.succeeds("ContainerStatus")?;
    same("reason", "StartError", status.reason.as_str())
}

async fn failed_start(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    let created = pod.create("c", &["/no/such/program"]).await;
    let container = created.succeeds("CreateContainer")?;
    container
        .start()
        .await
        .fails("StartContainer of a missing program")?;
    plugin.sees(Event::StopContainer, "p/c").await.map(drop)
}

async fn running(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    let (container, ran) = witness(s, &pod).await?;
    let held = container.clone();
    let call = async move { held.start().await };
    let hook = s
        .hold(&plugin, Event::PostStartContainer, "p/c", call)
        .await?;
    let state = container.state().await.succeeds("ContainerStatus")?;
    same("state", ContainerState::ContainerRunning, state)?;
    eventually("the program runs", || async {
        ran.exists()
            .then_some(())
            .ok_or_else(|| "no file of it".to_owned())
    })
    .await?;
    hook.passes("StartContainer").await
}

async fn end_after_beginning(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    for n in 0..5 {
        let name = format!("c{n}");
        pod.start(&name, &["true"])
            .await
            .succeeds("a container's start")?;
        let of = format!("p/{name}");
        let end = plugin.sees(Event::StopContainer, &of).await?;
        let beginning = plugin.sees(Event::PostStartContainer, &of).await?;
        that(
            beginning.number < end.number,
            "PostStartContainer, then StopContainer",
            listed(&plugin.lines()),
        )?;
    }
    Ok(())
}

/// Ends the pod, and checks that `p/c` got exactly one StopContainer.
async fn once(plugin: &Plugin, pod: &crate::cri::Pod) -> Checked {
    pod.ends().await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    let count = plugin.count(Event::StopContainer, "p/c");
    that(
        count == 1,
        "one StopContainer p/c",
        format!("{count}: {}", listed(&plugin.lines())),
    )
}

async fn stopped_by_cri(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, container) = s.sleeper("p").await?;
    container.stop().await.succeeds("StopContainer")?;
    container.stop().await.succeeds("a second StopContainer")?;
    container.remove().await.succeeds("RemoveContainer")?;
    once(&plugin, &pod).await
}

async fn exited_by_itself(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    let container = pod
        .start("c", &["true"])
        .await
        .succeeds("a container's start")?;
    container
        .exited(PATIENCE)
        .await
        .succeeds("ContainerStatus")?;
    plugin.sees(Event::StopContainer, "p/c").await?;
    container.stop().await.succeeds("StopContainer")?;
    container.remove().await.succeeds("RemoveContainer")?;
    once(&plugin, &pod).await
}

async fn stopped_by_its_pod(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, _) = s.sleeper("p").await?;
    once(&plugin, &pod).await
}

async fn reported_without_a_call(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    pod.start("c", &["sh", "-c", "exit 7"])
        .await
        .succeeds("a container's start")?;
    plugin.sees(Event::StopContainer, "p/c").await.map(drop)
}

async fn before_the_pods_stop(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, _) = s.sleeper("p").await?;
    let call = async move { pod.stop().await };
    let hook = s.hold(&plugin, Event::StopContainer, "p/c", call).await?;
    tokio::time::sleep(QUIET).await;
    let early = plugin.count(Event::StopPodSandbox, "p");
    same("StopPodSandbox events while StopContainer blocks", 0, early)?;
    hook.passes("StopPodSandbox").await
}

/// A pod with two running containers, `c` and `other`.
async fn two(s: &Stage) -> Checked<(crate::cri::Container, crate::cri::Container)> {
    let (pod, container) = s.sleeper("p").await?;
    let other = pod.start("other", &SLEEPER).await;
    Ok((container, other.succeeds("a container's start")?))
}

async fn updates_of_others(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (container, other) = two(s).await?;
    let id = other.id;
    plugin.stops(move |request| match &request.container {
        Some(stopped) if stopped.name == "c" => vec![limit(&id)],
        _ => Vec::new(),
    });
    container.stop().await.succeeds("StopContainer")?;
    is_limited(&plugin, "p/other").await
}

async fn the_first_holds(s: &Stage) -> Checked {
    use nri::adjust::SetResources;
    let (first, second) = (s.plugin("10", "a").await?, s.plugin("20", "b").await?);
    let (container, other) = two(s).await?;
    for (plugin, bytes) in [(&first, LIMIT), (&second, 2 * LIMIT)] {
        let id = other.id.clone();
        plugin.stops(move |request| match &request.container {
            Some(stopped) if stopped.name == "c" => {
                let mut update = nri::adjust::update(&id, false);
                update.memory_limit(bytes);
                vec![update]
            }
            _ => Vec::new(),
        });
    }
    container.stop().await.succeeds("StopContainer")?;
    is_limited(&first, "p/other").await
}

async fn still_there(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, container) = s.sleeper("p").await?;
    container.stop().await.succeeds("StopContainer")?;
    let id = container.id.clone();
    let call = async move { container.remove().await };
    let hook = s.hold(&plugin, Event::RemoveContainer, "p/c", call).await?;
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    let there = listed.iter().any(|c| c.id == id);
    that(there, "the container is listed", "it is not")?;
    hook.passes("RemoveContainer").await
}

async fn stop_came_before(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, container) = s.sleeper("p").await?;
    let never = pod.created("never").await?;
    container.stop().await.succeeds("StopContainer")?;
    for container in [&container, &never] {
        container.remove().await.succeeds("RemoveContainer")?;
    }
    for of in ["p/c", "p/never"] {
        let remove = plugin.sees(Event::RemoveContainer, of).await?;
        let seen = plugin.seen();
        let stop = seen
            .iter()
            .find(|s| s.event == Event::StopContainer && s.container_id() == remove.container_id());
        that(
            stop.is_some_and(|stop| stop.number < remove.number),
            format!("StopContainer {of}, then RemoveContainer {of}"),
            listed(&plugin.lines()),
        )?;
    }
    Ok(())
}
