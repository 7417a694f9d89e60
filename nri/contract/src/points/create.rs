//! C-04 and C-05.

use nri::{
    adjust::{Adjust, SetResources},
    proto::{ContainerEviction, CreateContainerResponse, Event},
};
use testkit::cri::{self, ContainerState};
use tonic::Code;

use crate::{
    cri::{Container, Pod, SLEEPER},
    look,
    point::{Point, points},
    stage::{Hook, Stage, eventually},
};
use testkit::{
    journal::listed,
    plugin::{Behavior, Plugin},
    verdict::{Answer, Checked, reported, same, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "C-04.1/not-listed" "in CreateContainer, the container is not listed" not_listed;
        Fast "C-04.1/status-not-found" "in CreateContainer, its status is not found" status_not_found;
        Fast "C-04.1/not-before-all-plugins" "it is not listed while the second of two plugins is asked" not_before_all;
        Fast "C-04.2/later-sees-earlier" "a later plugin sees the container as earlier ones adjusted it" later_sees_earlier;
        Fast "C-04.2/later-may-remove" "a later plugin may take away what an earlier one set" later_may_remove;
        Fast "C-04.5/updates-of-others" "updates of other containers in an answer are applied" updates_of_others;
        Fast "C-04.5/evictions" "evictions of other containers in an answer are carried out" evictions;
        Fast "C-04.5/a-failed-update-costs-nothing" "an update of an unknown container does not fail the creation" failed_update;
        Fast "C-04.5/updates-hold-though-the-creation-fails" "an update holds though the adjustment cannot be applied" updates_hold;
        Fast "C-04.6/refused-by-name" "an adjustment that cannot be applied fails the creation, and nothing is left" refused_by_name;
        Fast "C-04.7/error" "a plugin's error fails CreateContainer" error;
        Fast "C-04.7/every-plugin-gets-the-end" "after an error, all plugins get StopContainer and RemoveContainer" everyone;
        Fast "C-04.7/nothing-is-left" "after an error, nothing of the container is left, and a retry works" nothing_is_left;
        Fast "C-04.8/stopped-pod" "CreateContainer in a stopped pod fails and makes no event" stopped_pod;
        Fast "C-05.1/listed" "in PostCreateContainer, the container is listed as CREATED" listed_as_created;
        Fast "C-05.2/no-process" "until StartContainer there is no process: pid is 0" no_process;
    }
}

/// A pod, and a container of it whose creation a plugin blocks.
async fn creating(s: &Stage, plugin: &Plugin) -> Checked<(Pod, Hook<Container>)> {
    let pod = s.pod("p").await?;
    let hook = {
        let pod = pod.clone();
        let call = async move { pod.create("c", &SLEEPER).await };
        s.hold(plugin, Event::CreateContainer, "p/c", call).await?
    };
    Ok((pod, hook))
}

async fn not_listed(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, hook) = creating(s, &plugin).await?;
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    same("containers listed meanwhile", 0, listed.len())?;
    hook.passes("CreateContainer").await?;
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    same("containers listed afterwards", 1, listed.len())
}

async fn status_not_found(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, hook) = creating(s, &plugin).await?;
    let early = s.cri().container(hook.seen.container_id());
    let error = early.status().await.fails("ContainerStatus")?;
    that(
        error.code() == Code::NotFound,
        "the error is NOT_FOUND",
        reported(&error),
    )?;
    hook.passes("CreateContainer").await.map(drop)
}

async fn not_before_all(s: &Stage) -> Checked {
    let first = s.plugin("10", "a").await?;
    let second = s.plugin("20", "b").await?;
    let (_, hook) = creating(s, &second).await?;
    same(
        "CreateContainer at the first plugin",
        1,
        first.count(Event::CreateContainer, "p/c"),
    )?;
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    same("containers listed meanwhile", 0, listed.len())?;
    hook.passes("CreateContainer").await.map(drop)
}

async fn later_sees_earlier(s: &Stage) -> Checked {
    let first = s.plugin("10", "a").await?;
    let second = s.plugin("20", "b").await?;
    first.adjusts(|adjust| {
        adjust
            .add_env("EARLY", "seen")
            .add_annotation("early", "seen");
        adjust.memory_limit(64 << 20);
    });
    let pod = s.pod("p").await?;
    pod.created("c").await?;
    let seen = second.sees(Event::CreateContainer, "p/c").await?;
    let container = seen.container.unwrap_or_default();
    that(
        container.env.iter().any(|e| e == "EARLY=seen"),
        "env has EARLY=seen",
        format!("{:?}", container.env),
    )?;
    let annotation = container.annotations.get("early").map(String::as_str);
    same("annotation early", Some("seen"), annotation)?;
    let memory = container.linux.and_then(|l| l.resources?.memory?.limit);
    same(
        "memory limit",
        Some(64 << 20),
        memory.map(|limit| limit.value),
    )
}

async fn later_may_remove(s: &Stage) -> Checked {
    let first = s.plugin("10", "a").await?;
    let second = s.plugin("20", "b").await?;
    first.adjusts(|adjust| {
        adjust.add_env("BOTH", "first").add_env("GONE", "x");
    });
    second.adjusts(|adjust| {
        adjust.set_env("BOTH", "second").remove_env("GONE");
    });
    let pod = s.pod("p").await?;
    let container = pod
        .start("c", &SLEEPER)
        .await
        .succeeds("a container's start")?;
    let (printed, _) = container
        .sh("echo \"$BOTH/${GONE:-gone}\"")
        .await
        .succeeds("ExecSync")?;
    same(
        "BOTH/GONE in the container",
        "second/gone",
        printed.as_str(),
    )
}

/// The plugin answers the creation of `new` only.
fn answers_new(plugin: &Plugin, answer: CreateContainerResponse) {
    plugin.creates(move |request| {
        if request.container.as_ref().is_some_and(|c| c.name == "new") {
            answer.clone()
        } else {
            CreateContainerResponse::default()
        }
    });
}

/// A memory limit that only the suite's updates set.
pub(super) const LIMIT: i64 = 48 << 20;

/// An update of a container's memory limit to [`LIMIT`].
pub(super) fn limit(container: &str) -> nri::proto::ContainerUpdate {
    let mut update = nri::adjust::update(container, false);
    update.memory_limit(LIMIT);
    update
}

/// Returns the memory limit in the cgroup of a process.
pub(super) fn memory_of(pid: u32) -> Option<String> {
    look::of_cgroup(pid, "memory", "memory.limit_in_bytes", "memory.max")
}

/// Returns the pid of a started container from the plugin's event.
pub(super) async fn pid_of(plugin: &Plugin, of: &str) -> Checked<u32> {
    let seen = plugin.sees(Event::StartContainer, of).await?;
    let pid = seen.container.map_or(0, |container| container.pid);
    that(pid > 0, "StartContainer has the pid", "pid is 0")?;
    Ok(pid)
}

/// Checks that the limit is in the cgroup.
pub(super) async fn is_limited(plugin: &Plugin, of: &str) -> Checked {
    let pid = pid_of(plugin, of).await?;
    eventually(
        &format!("the cgroup of {of} has the memory limit {LIMIT}"),
        || async {
            match memory_of(pid) {
                Some(limit) if limit == LIMIT.to_string() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await
}

async fn updates_of_others(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, other) = s.sleeper("p").await?;
    let update = vec![limit(&other.id)];
    answers_new(
        &plugin,
        CreateContainerResponse {
            update,
            ..Default::default()
        },
    );
    pod.created("new").await?;
    is_limited(&plugin, "p/c").await
}

async fn evictions(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, other) = s.sleeper("p").await?;
    let evict = vec![ContainerEviction {
        container_id: other.id.clone(),
        reason: "room for the new one".into(),
    }];
    answers_new(
        &plugin,
        CreateContainerResponse {
            evict,
            ..Default::default()
        },
    );
    pod.created("new").await?;
    let status = other.exited(crate::stage::PATIENCE).await;
    let state = status.succeeds("ContainerStatus")?.state();
    same(
        "the state of the evicted one",
        ContainerState::ContainerExited,
        state,
    )
}

async fn failed_update(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    let update = vec![limit(&"f".repeat(64))];
    answers_new(
        &plugin,
        CreateContainerResponse {
            update,
            ..Default::default()
        },
    );
    pod.created("new").await.map(drop)
}

/// An adjustment that no host can apply.
fn impossible() -> nri::proto::ContainerAdjustment {
    let mut adjust = nri::proto::ContainerAdjustment::default();
    adjust.add_cdi_device("nri-contract.invalid/none=such");
    adjust
}

async fn updates_hold(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, other) = s.sleeper("p").await?;
    let answer = CreateContainerResponse {
        update: vec![limit(&other.id)],
        adjust: Some(impossible()),
        ..Default::default()
    };
    answers_new(&plugin, answer);
    pod.create("new", &SLEEPER).await.fails("CreateContainer")?;
    is_limited(&plugin, "p/c").await
}

async fn refused_by_name(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    plugin.creates(|_| CreateContainerResponse {
        adjust: Some(impossible()),
        ..Default::default()
    });
    let error = pod.create("c", &SLEEPER).await.fails("CreateContainer")?;
    that(
        error.message().contains("nri-contract.invalid/none=such"),
        "the error names the CDI device nri-contract.invalid/none=such",
        reported(&error),
    )?;
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    same("containers listed", 0, listed.len())
}

async fn error(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    plugin.does(
        Event::CreateContainer,
        Behavior::Error("not this one".into()),
    );
    let error = pod.create("c", &SLEEPER).await.fails("CreateContainer")?;
    that(
        error.message().contains("not this one"),
        "the error has the plugin's reason",
        reported(&error),
    )
}

async fn everyone(s: &Stage) -> Checked {
    let (first, second, third) = (
        s.plugin("10", "a").await?,
        s.plugin("20", "b").await?,
        s.plugin("30", "c").await?,
    );
    second.does(
        Event::CreateContainer,
        Behavior::Error("not this one".into()),
    );
    let pod = s.pod("p").await?;
    pod.create("c", &SLEEPER).await.fails("CreateContainer")?;
    for plugin in [&first, &second, &third] {
        plugin.sees(Event::RemoveContainer, "p/c").await?;
        let lines: Vec<String> = plugin.lines();
        let end: Vec<&str> = lines
            .iter()
            .map(String::as_str)
            .filter(|l| l.starts_with("StopContainer") || l.starts_with("RemoveContainer"))
            .collect();
        that(
            end == ["StopContainer p/c", "RemoveContainer p/c"],
            format!(
                "{} gets StopContainer p/c, then RemoveContainer p/c",
                plugin.id()
            ),
            listed(&lines),
        )?;
    }
    Ok(())
}

async fn nothing_is_left(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    plugin.does(
        Event::CreateContainer,
        Behavior::Error("not this one".into()),
    );
    pod.create("c", &SLEEPER).await.fails("CreateContainer")?;
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    same("containers listed", 0, listed.len())?;
    plugin.behaves();
    // Reuse name and attempt: remains of the first container would cause a conflict.
    let again = pod
        .start("c", &SLEEPER)
        .await
        .succeeds("a container of the same name")?;
    let state = again.state().await.succeeds("ContainerStatus")?;
    same("its state", ContainerState::ContainerRunning, state)
}

async fn stopped_pod(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    pod.stop().await.succeeds("StopPodSandbox")?;
    pod.create("c", &SLEEPER)
        .await
        .fails("CreateContainer in a stopped pod")?;
    pod.remove().await.succeeds("RemovePodSandbox")?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    same(
        "CreateContainer events",
        0,
        plugin.count(Event::CreateContainer, "p/c"),
    )
}

async fn listed_as_created(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    let call = async move { pod.create("c", &SLEEPER).await };
    let hook = s
        .hold(&plugin, Event::PostCreateContainer, "p/c", call)
        .await?;
    let id = hook.seen.container_id().to_owned();
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    let state = listed
        .iter()
        .find(|c| c.id == id)
        .map(cri::Container::state);
    same(
        "its state in the list",
        Some(ContainerState::ContainerCreated),
        state,
    )?;
    hook.passes("CreateContainer").await.map(drop)
}

async fn no_process(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    pod.created("c").await?;
    for event in [Event::CreateContainer, Event::PostCreateContainer] {
        let seen = plugin.sees(event, "p/c").await?;
        let pid = seen.container.map_or(0, |container| container.pid);
        same(&format!("pid in {event:?}"), 0, pid)?;
    }
    Ok(())
}
