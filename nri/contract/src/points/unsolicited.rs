//! G-26, G-27 and G-28: requests of plugins on their own initiative, and events that must not be
//! sent.

use nri::{
    adjust::Adjust,
    proto::{ContainerEviction, ContainerUpdate, Event},
};
use testkit::cri::ContainerState;

use super::create::{is_limited, limit};
use crate::{
    cri::{Container, SLEEPER},
    point::{Point, points},
    stage::{PATIENCE, Stage},
};
use testkit::{
    plugin::Plugin,
    verdict::{Answer, Checked, miss, reported, same, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "G-26/applied" "an update that a plugin sends by itself is applied" applied;
        Fast "G-26/failures-are-returned" "of two updates, that of an unknown container comes back in failed, the other is applied" failed_is_told;
        Fast "G-26/an-exited-container-fails" "an update of a container that has exited comes back in failed" exited;
        Fast "G-26/inside-a-handler" "a handler may ask for updates" inside_a_handler;
        Fast "G-26/many-at-once" "a dozen updates at once are all answered" many_at_once;
        Fast "G-27/stops-the-container" "an eviction stops the container, and no other" stops_the_container;
        Fast "G-27/the-reason-is-sent" "the reason of an eviction is in the container's status, as one line" the_reason;
        Fast "G-28/no-value-in-an-error" "the error of a conflict over a variable has its name, not its values" no_value;
    }
}

async fn ask(plugin: &Plugin, update: Vec<ContainerUpdate>) -> Checked<Vec<ContainerUpdate>> {
    let answer = plugin.runtime().update_containers(update, Vec::new()).await;
    answer.or_else(|error| miss("UpdateContainers is answered", error))
}

async fn evict(plugin: &Plugin, container: &Container, reason: &str) -> Checked {
    let evict = vec![ContainerEviction {
        container_id: container.id.clone(),
        reason: reason.into(),
    }];
    let answer = plugin.runtime().update_containers(Vec::new(), evict).await;
    answer
        .map(drop)
        .or_else(|error| miss("UpdateContainers is answered", error))
}

fn ids(failed: &[ContainerUpdate]) -> Vec<&str> {
    failed.iter().map(|u| u.container_id.as_str()).collect()
}

async fn applied(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, container) = s.sleeper("p").await?;
    let failed = ask(&plugin, vec![limit(&container.id)]).await?;
    same("failed updates", Vec::<&str>::new(), ids(&failed))?;
    is_limited(&plugin, "p/c").await
}

async fn failed_is_told(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, container) = s.sleeper("p").await?;
    let unknown = "f".repeat(64);
    let failed = ask(&plugin, vec![limit(&unknown), limit(&container.id)]).await?;
    same("failed updates", vec![unknown.as_str()], ids(&failed))?;
    is_limited(&plugin, "p/c").await
}

async fn exited(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, container) = s.sleeper("p").await?;
    container.stop().await.succeeds("StopContainer")?;
    let failed = ask(&plugin, vec![limit(&container.id)]).await?;
    same("failed updates", vec![container.id.as_str()], ids(&failed))
}

async fn inside_a_handler(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, container) = s.sleeper("p").await?;
    let call = async move { pod.start("d", &SLEEPER).await };
    let hook = s
        .hold(&plugin, Event::PostStartContainer, "p/d", call)
        .await?;
    let failed = ask(&plugin, vec![limit(&container.id)]).await?;
    same("failed updates", Vec::<&str>::new(), ids(&failed))?;
    hook.passes("StartContainer").await?;
    is_limited(&plugin, "p/c").await
}

async fn many_at_once(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, container) = s.sleeper("p").await?;
    let asked: Vec<_> = (0..12)
        .map(|_| {
            let (runtime, update) = (plugin.runtime(), vec![limit(&container.id)]);
            s.call(async move { runtime.update_containers(update, Vec::new()).await })
        })
        .collect();
    for answer in asked {
        match answer.await {
            Ok(Ok(failed)) => same("failed updates", Vec::<&str>::new(), ids(&failed))?,
            Ok(Err(error)) => return miss("UpdateContainers is answered", error),
            Err(error) => return miss("UpdateContainers is answered", error),
        }
    }
    is_limited(&plugin, "p/c").await
}

async fn stops_the_container(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (pod, container) = s.sleeper("p").await?;
    let other = pod
        .start("other", &SLEEPER)
        .await
        .succeeds("a container's start")?;
    evict(&plugin, &container, "out you go").await?;
    let status = container
        .exited(PATIENCE)
        .await
        .succeeds("ContainerStatus")?;
    same("its state", ContainerState::ContainerExited, status.state())?;
    plugin.sees(Event::StopContainer, "p/c").await?;
    let state = other.state().await.succeeds("ContainerStatus")?;
    same("the other's state", ContainerState::ContainerRunning, state)
}

async fn the_reason(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let (_, container) = s.sleeper("p").await?;
    evict(&plugin, &container, "room for\nthe others").await?;
    let status = container
        .exited(PATIENCE)
        .await
        .succeeds("ContainerStatus")?;
    that(
        status.message.contains("room for the others"),
        "the message in the status has the reason, \"room for the others\"",
        format!("{:?}, state {:?}", status.message, status.state()),
    )
}

async fn no_value(s: &Stage) -> Checked {
    let (one, two) = (s.plugin("10", "a").await?, s.plugin("20", "b").await?);
    one.adjusts(|adjust| {
        adjust.add_env("PASSWORD", "correct-horse");
    });
    two.adjusts(|adjust| {
        adjust.add_env("PASSWORD", "battery-staple");
    });
    let pod = s.pod("p").await?;
    let error = pod.create("c", &SLEEPER).await.fails("CreateContainer")?;
    let text = error.message();
    let silent = !text.contains("correct-horse") && !text.contains("battery-staple");
    that(
        silent && text.contains("PASSWORD"),
        "the error names PASSWORD and no value of it",
        reported(&error),
    )
}
