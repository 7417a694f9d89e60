//! C-02 and C-03.

use std::fs;

use nri::proto::Event;
use rustix::process::{Pid, Signal, kill_process};
use testkit::cri::{ContainerState, NamespaceMode, PodSandboxState};

use crate::{
    cri::{Container, Pod, SLEEPER, namespace_options},
    look::{self, Kind},
    point::{Point, points},
    stage::{Hook, Stage, eventually},
};
use testkit::{
    journal::listed,
    plugin::Plugin,
    verdict::{Answer, Checked, miss, same, skip, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "C-02.1/containers-are-stopped" "in StopPodSandbox, every container has exited" containers_are_stopped;
        Fast "C-02.1/containers-had-their-event" "before StopPodSandbox, StopContainer of every container was answered" containers_were_told;
        Fast "C-02.2/network-works" "in StopPodSandbox, the pod's address works" network_works;
        Fast "C-02.3/namespaces" "in StopPodSandbox, the namespaces can be entered by the paths in the message" namespaces;
        Fast "C-02.3/cgroup" "in StopPodSandbox, the pod's cgroup is there" cgroup;
        Fast "C-02.4/status-answers" "in StopPodSandbox, PodSandboxStatus answers" status_answers;
        Fast "C-02.5/no-process-needed" "namespaces stay when the pause process is killed" no_process_needed;
        Fast "C-02.6/sent-once" "a second StopPodSandbox sends nothing" notified_once;
        Fast "C-02.9/found-dead" "a sandbox found dead gets StopPodSandbox once, when CRI stops it" found_dead;
        Fast "C-03.1/containers-are-removed" "in RemovePodSandbox, all containers are removed, and plugins got their removal" containers_are_removed;
        Fast "C-03.2/a-running-pod-is-stopped-first" "RemovePodSandbox of a running pod stops it first, with StopPodSandbox" stopped_first;
        Fast "C-03.3/removed-paths-are-not-sent" "RemovePodSandbox names no path that was removed" gone_paths;
        Fast "C-03.4/identity" "RemovePodSandbox has id, name, uid, namespace, labels and annotations as in RunPodSandbox" identity;
        Fast "C-03.5/unknown-id" "removal of an unknown sandbox succeeds, without an event" unknown_id;
        Fast "C-03.6/addresses" "RemovePodSandbox has the addresses of RunPodSandbox" addresses;
    }
}

/// A pod with a container; a plugin blocks in C-02.
async fn stopping(s: &Stage) -> Checked<(Plugin, Pod, Container, Hook<()>)> {
    let plugin = s.plugin("10", "a").await?;
    let (pod, container) = s.sleeper("p").await?;
    let hook = {
        let pod = pod.clone();
        let call = async move { pod.stop().await };
        s.hold(&plugin, Event::StopPodSandbox, "p", call).await?
    };
    Ok((plugin, pod, container, hook))
}

async fn containers_are_stopped(s: &Stage) -> Checked {
    let (_plugin, _, container, hook) = stopping(s).await?;
    let state = container.state().await.succeeds("ContainerStatus")?;
    same(
        "the container's state",
        ContainerState::ContainerExited,
        state,
    )?;
    hook.passes("StopPodSandbox").await
}

async fn containers_were_told(s: &Stage) -> Checked {
    let (plugin, _, _, hook) = stopping(s).await?;
    let seen = plugin.seen();
    let stop = seen.iter().find(|s| s.event == Event::StopContainer);
    that(
        stop.is_some_and(|stop| stop.answered.is_some_and(|at| at <= hook.seen.at)),
        "StopContainer of p/c was answered before StopPodSandbox p",
        listed(&plugin.lines()),
    )?;
    hook.passes("StopPodSandbox").await
}

async fn network_works(s: &Stage) -> Checked {
    let (plugin, _, _, hook) = stopping(s).await?;
    let run = plugin.sees(Event::RunPodSandbox, "p").await?.pod;
    let Some(address) = run.ips.first() else {
        return miss("the pod has an address", "ips was empty at RunPodSandbox");
    };
    look::network_works(look::path_of(&run, Kind::Network)?, address).await?;
    hook.passes("StopPodSandbox").await
}

async fn namespaces(s: &Stage) -> Checked {
    let (_plugin, _, _, hook) = stopping(s).await?;
    for kind in Kind::ALL {
        look::can_be_entered(look::path_of(&hook.seen.pod, kind)?, kind).await?;
    }
    hook.passes("StopPodSandbox").await
}

async fn cgroup(s: &Stage) -> Checked {
    let (_plugin, _, _, hook) = stopping(s).await?;
    let linux = hook.seen.pod.linux.clone().unwrap_or_default();
    for path in [&linux.cgroup_parent, &linux.cgroups_path] {
        that(
            !path.is_empty() && !look::cgroup_dirs(path).is_empty(),
            "the cgroups of linux.cgroup_parent and linux.cgroups_path exist",
            format!("{path:?} does not"),
        )?;
    }
    hook.passes("StopPodSandbox").await
}

async fn status_answers(s: &Stage) -> Checked {
    let (_plugin, pod, _, hook) = stopping(s).await?;
    let status = pod.status().await.succeeds("PodSandboxStatus")?;
    same("the id in the status", &pod.id, &status.id)?;
    hook.passes("StopPodSandbox").await
}

/// A pod whose pause process, if it has one, is killed; and the pod in the plugin's RunPodSandbox
/// event.
async fn dead_sandbox(s: &Stage, plugin: &Plugin) -> Checked<(Pod, nri::proto::PodSandbox)> {
    let mut config = s.pod_config("p");
    namespace_options(&mut config, |n| n.pid = NamespaceMode::Pod.into());
    let pod = s.cri().run(config).await.succeeds("RunPodSandbox")?;
    let run = plugin.sees(Event::RunPodSandbox, "p").await?.pod;
    let pid = i32::try_from(run.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return skip("the pid of the pause process, at RunPodSandbox");
    };
    // Kill only a process of the pod, even if the runtime reports a wrong pid.
    let netns = look::path_of(&run, Kind::Network)?;
    let of_pod = look::inside(netns, Kind::Network, || {
        fs::read_link("/proc/thread-self/ns/net")
    });
    let of_pod =
        testkit::verdict::done("the pod's network namespace can be entered", of_pod.await)?;
    let own = fs::read_link(format!("/proc/{}/ns/net", run.pid)).ok();
    // The number may belong to a thread of the suite that has just entered the namespace.
    let own = own.filter(|_| look::is_process(run.pid));
    same(
        "the network namespace of the process that pid names",
        Some(of_pod),
        own,
    )?;
    let killed = kill_process(pid, Signal::KILL);
    testkit::verdict::done(
        "the pause process can be killed",
        killed.map_err(Into::into),
    )?;
    eventually("the pause process ends", || async {
        if look::runs(run.pid) {
            Err("it runs".to_owned())
        } else {
            Ok(())
        }
    })
    .await?;
    Ok((pod, run))
}

async fn no_process_needed(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, run) = dead_sandbox(s, &plugin).await?;
    let call = async move { pod.stop().await };
    let hook = s.hold(&plugin, Event::StopPodSandbox, "p", call).await?;
    for kind in Kind::ALL {
        look::can_be_entered(look::path_of(&run, kind)?, kind).await?;
    }
    hook.passes("StopPodSandbox").await
}

async fn notified_once(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, _) = s.sleeper("p").await?;
    for _ in 0..3 {
        pod.stop().await.succeeds("StopPodSandbox")?;
    }
    let state = pod.status().await.succeeds("PodSandboxStatus")?.state();
    same("the pod's state", PodSandboxState::SandboxNotready, state)?;
    pod.remove().await.succeeds("RemovePodSandbox")?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    same(
        "StopPodSandbox events of a pod that was stopped three times and removed",
        1,
        plugin.count(Event::StopPodSandbox, "p"),
    )
}

async fn found_dead(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, _) = dead_sandbox(s, &plugin).await?;
    eventually("the sandbox is found NOTREADY", || async {
        match pod.status().await.map(|status| status.state()) {
            Ok(PodSandboxState::SandboxNotready) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    pod.stop().await.succeeds("StopPodSandbox")?;
    pod.stop().await.succeeds("StopPodSandbox")?;
    pod.remove().await.succeeds("RemovePodSandbox")?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    same(
        "StopPodSandbox events",
        1,
        plugin.count(Event::StopPodSandbox, "p"),
    )
}

async fn containers_are_removed(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, _) = s.sleeper("p").await?;
    pod.create("never-started", &SLEEPER)
        .await
        .succeeds("CreateContainer")?;
    pod.stop().await.succeeds("StopPodSandbox")?;
    let call = async move { pod.remove().await };
    let hook = s.hold(&plugin, Event::RemovePodSandbox, "p", call).await?;
    let left = s.cri().containers().await.succeeds("ListContainers")?;
    same("containers listed in RemovePodSandbox", 0, left.len())?;
    for container in ["p/c", "p/never-started"] {
        same(
            &format!("RemoveContainer events of {container} before RemovePodSandbox"),
            1,
            plugin.count(Event::RemoveContainer, container),
        )?;
    }
    hook.passes("RemovePodSandbox").await
}

async fn stopped_first(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, _) = s.sleeper("p").await?;
    pod.remove()
        .await
        .succeeds("RemovePodSandbox of a running pod")?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    let lines = plugin.lines();
    let at = |line: &str| lines.iter().position(|l| l == line);
    let (container, stop, remove) = (
        at("StopContainer p/c"),
        at("StopPodSandbox p"),
        at("RemovePodSandbox p"),
    );
    that(
        container.is_some() && container < stop && stop < remove,
        "StopContainer p/c, then StopPodSandbox p, then RemovePodSandbox p",
        listed(&lines),
    )
}

async fn gone_paths(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, _) = s.sleeper("p").await?;
    pod.stop().await.succeeds("StopPodSandbox")?;
    let call = async move { pod.remove().await };
    let hook = s.hold(&plugin, Event::RemovePodSandbox, "p", call).await?;
    for kind in Kind::ALL {
        if let Some(path) = look::namespace(&hook.seen.pod, kind) {
            look::can_be_entered(path, kind).await?;
        }
    }
    hook.passes("RemovePodSandbox").await
}

async fn identity(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    pod.ends().await?;
    let first = plugin.sees(Event::RunPodSandbox, "p").await?.pod;
    let last = plugin.sees(Event::RemovePodSandbox, "p").await?.pod;
    same("id", &first.id, &last.id)?;
    same("uid", &first.uid, &last.uid)?;
    same("namespace", &first.namespace, &last.namespace)?;
    for (key, value) in &pod.config.labels {
        same(&format!("label {key}"), Some(value), last.labels.get(key))?;
    }
    for (key, value) in &pod.config.annotations {
        let reported = last.annotations.get(key);
        same(&format!("annotation {key}"), Some(value), reported)?;
    }
    Ok(())
}

async fn addresses(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    s.pod("p").await?.ends().await?;
    let first = plugin.sees(Event::RunPodSandbox, "p").await?.pod;
    let last = plugin.sees(Event::RemovePodSandbox, "p").await?.pod;
    same("ips", first.ips, last.ips)
}

async fn unknown_id(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    pod.ends().await?;
    for id in [pod.id.clone(), "f".repeat(64)] {
        let cri = s.cri();
        cri.client
            .remove_pod(&id)
            .await
            .succeeds("RemovePodSandbox of an unknown id")?;
    }
    let events = plugin.count(Event::RemovePodSandbox, "p");
    same(
        "RemovePodSandbox events of a pod that was removed twice",
        1,
        events,
    )
}
