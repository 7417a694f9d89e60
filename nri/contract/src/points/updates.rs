//! C-08 and C-09.

use nri::{
    adjust::SetResources,
    proto::{ContainerUpdate, Event},
};
use testkit::cri::LinuxContainerResources;

use super::create::{LIMIT, is_limited, limit, memory_of, pid_of};
use crate::{
    look,
    point::{Point, points},
    stage::{Stage, one_line_with},
};
use testkit::{
    journal::listed,
    plugin::{Behavior, Plugin},
    verdict::{Answer, Checked, same, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "C-08.1/later-sees-earlier" "a later plugin sees the resources as an earlier one changed them" later_sees_earlier;
        Fast "C-08.2/plugins-values-hold" "what a plugin sets is laid over the request" plugins_values_hold;
        Fast "C-08.2/the-rest-of-the-request-holds" "what no plugin touched is applied as it was asked for" the_rest_holds;
        Fast "C-08.3/updates-of-others" "updates of other containers in an answer are applied" updates_of_others;
        Fast "C-08.4/error-changes-nothing" "after a plugin's error nothing has changed" error_changes_nothing;
        Fast "C-08.4/conflict" "two plugins that set the same fail the call by their names, and nothing has changed" conflict;
        Fast "C-08.5/no-event" "an update that a plugin asks for makes no UpdateContainer" no_event;
        Fast "C-09.1/new-values" "in PostUpdateContainer, the cgroup has the new values" new_values;
        Fast "C-09.2/not-after-a-failed-one" "there is no PostUpdateContainer after a failed update" not_after_a_failed_one;
    }
}

/// A request for these CPU shares and this memory limit.
fn asked(shares: i64, memory: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_shares: shares,
        memory_limit_in_bytes: memory,
        ..Default::default()
    }
}

/// Makes the plugin change the target of every UpdateContainer from now on.
fn changes(plugin: &Plugin, change: impl Fn(&mut ContainerUpdate) + Send + Sync + 'static) {
    plugin.updates(move |request| {
        let id = request.container.as_ref().map_or("", |c| &c.id);
        let mut update = nri::adjust::update(id, false);
        change(&mut update);
        vec![update]
    });
}

/// Returns the CPU shares in the cgroup, in units of v1.
fn shares_of(pid: u32) -> Option<u64> {
    let text = look::of_cgroup(pid, "cpu", "cpu.shares", "cpu.weight")?;
    let number: u64 = text.parse().ok()?;
    match look::of_cgroup(pid, "cpu", "cpu.shares", "none") {
        Some(_) => Some(number),
        // The kernel maps shares of 2 to 262144 to weights of 1 to 10000.
        None => Some(2 + (number - 1) * 262_142 / 9_999),
    }
}

async fn later_sees_earlier(s: &Stage) -> Checked {
    let (first, second) = (s.plugin("10", "a").await?, s.plugin("20", "b").await?);
    let (_, container) = s.sleeper("p").await?;
    changes(&first, |update| {
        update.memory_limit(LIMIT);
    });
    container
        .update(asked(300, 2 * LIMIT))
        .await
        .succeeds("UpdateContainerResources")?;
    let seen = second.sees(Event::UpdateContainer, "p/c").await?;
    let memory = seen.resources.and_then(|r| r.memory?.limit);
    same(
        "memory limit at the second plugin",
        Some(LIMIT),
        memory.map(|m| m.value),
    )
}

async fn plugins_values_hold(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, container) = s.sleeper("p").await?;
    changes(&plugin, |update| {
        update.memory_limit(LIMIT);
    });
    container
        .update(asked(0, 2 * LIMIT))
        .await
        .succeeds("UpdateContainerResources")?;
    is_limited(&plugin, "p/c").await
}

async fn the_rest_holds(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, container) = s.sleeper("p").await?;
    changes(&plugin, |update| {
        update.pids_limit(99);
    });
    container
        .update(asked(300, LIMIT))
        .await
        .succeeds("UpdateContainerResources")?;
    is_limited(&plugin, "p/c").await?;
    let shares = shares_of(pid_of(&plugin, "p/c").await?);
    let near = shares.is_some_and(|shares| (280..=320).contains(&shares));
    that(
        near,
        "CPU shares of 300 in the cgroup",
        format!("{shares:?}"),
    )
}

async fn updates_of_others(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, container) = s.sleeper("p").await?;
    let other = pod.start("other", &crate::cri::SLEEPER).await;
    let other = other.succeeds("a container's start")?.id;
    plugin.updates(move |_| vec![limit(&other)]);
    container
        .update(asked(300, 0))
        .await
        .succeeds("UpdateContainerResources")?;
    is_limited(&plugin, "p/other").await
}

/// Checks that a failing call changes nothing in a container with a memory limit of [`LIMIT`].
async fn unchanged_by(
    s: &Stage,
    plugin: &Plugin,
    prepare: impl FnOnce(),
) -> Checked<tonic::Status> {
    let (_, container) = s.sleeper("p").await?;
    container
        .update(asked(0, LIMIT))
        .await
        .succeeds("UpdateContainerResources")?;
    prepare();
    let error = container
        .update(asked(0, 2 * LIMIT))
        .await
        .fails("UpdateContainerResources")?;
    let memory = memory_of(pid_of(plugin, "p/c").await?);
    same(
        "memory limit in the cgroup",
        Some(LIMIT.to_string()),
        memory,
    )?;
    Ok(error)
}

async fn error_changes_nothing(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let veto = || {
        plugin.does(
            Event::UpdateContainer,
            Behavior::Error("not this one".into()),
        )
    };
    unchanged_by(s, &plugin, veto).await.map(drop)
}

async fn conflict(s: &Stage) -> Checked {
    let (first, second) = (s.plugin("10", "a").await?, s.plugin("20", "b").await?);
    let error = unchanged_by(s, &first, || {
        for plugin in [&first, &second] {
            changes(plugin, |update| {
                update.memory_limit(3 * LIMIT);
            });
        }
    })
    .await?;
    one_line_with(&error, &[first.id(), second.id()])
}

async fn no_event(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, container) = s.sleeper("p").await?;
    let update = vec![limit(&container.id)];
    let answer = plugin.runtime().update_containers(update, Vec::new()).await;
    if let Err(error) = answer {
        return testkit::verdict::miss("UpdateContainers succeeds", error);
    }
    is_limited(&plugin, "p/c").await?;
    pod.ends().await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    let made: usize = [Event::UpdateContainer, Event::PostUpdateContainer]
        .map(|event| plugin.count(event, "p/c"))
        .iter()
        .sum();
    that(
        made == 0,
        "no UpdateContainer, no PostUpdateContainer",
        listed(&plugin.lines()),
    )
}

async fn new_values(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, container) = s.sleeper("p").await?;
    let call = async move { container.update(asked(0, LIMIT)).await };
    let hook = s
        .hold(&plugin, Event::PostUpdateContainer, "p/c", call)
        .await?;
    let memory = memory_of(pid_of(&plugin, "p/c").await?);
    same(
        "memory limit in the cgroup",
        Some(LIMIT.to_string()),
        memory,
    )?;
    hook.passes("UpdateContainerResources").await
}

async fn not_after_a_failed_one(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, container) = s.sleeper("p").await?;
    plugin.does(
        Event::UpdateContainer,
        Behavior::Error("not this one".into()),
    );
    let updated = container.update(asked(300, 0)).await;
    updated.fails("UpdateContainerResources")?;
    pod.ends().await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    let post = plugin.count(Event::PostUpdateContainer, "p/c");
    that(post == 0, "no PostUpdateContainer", listed(&plugin.lines()))
}
