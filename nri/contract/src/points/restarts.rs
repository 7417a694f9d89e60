//! Guarantees across a restart of the runtime, which is killed without warning: G-13 to G-21,
//! C-02.6, C-02.7, C-10.6; and G-30, which needs a restart to set the required plugin.

use std::path::PathBuf;

use nri::proto::Event;
use testkit::cri::ContainerState;

use super::failures::{before, of};
use crate::{
    cri::{Container, Pod, SLEEPER},
    point::{Cost, Point, points},
    restart::{Restart, With},
    stage::{Stage, eventually, one_line_with},
};
use testkit::{
    journal::listed,
    plugin::{Plugin, Wanted},
    verdict::{Answer, Checked, miss, reported, same, skip, that},
};

pub(crate) fn points() -> Vec<Point> {
    let mut points = points! {
        Restart "C-02.6/sent-once-over-a-restart" "the stop of a pod before a restart is not reported again" notified_once;
        Restart "C-02.7/an-older-pod" "a pod older than the runtime gets StopPodSandbox and RemovePodSandbox" older_pod;
        Restart "C-10.6/an-exit-meanwhile" "the end of a container while the runtime was down is reported once" exit_meanwhile;
        Restart "G-22/lists-after-a-restart" "after a restart, a plugin gets the pods and containers that exist" lists_after;
        Restart "G-30/required-for-pods" "without a required plugin no pod runs; with it, one does" required_for_pods;
        Restart "G-30/required-for-containers" "without a required plugin no container is created; with it, one is" required_for_containers;
    };
    for (id, event, rest) in [
        (
            "G-13/killed-in-RunPodSandbox",
            Event::RunPodSandbox,
            "the pod is rolled back, with StopPodSandbox and RemovePodSandbox",
        ),
        (
            "G-14/killed-in-CreateContainer",
            Event::CreateContainer,
            "the container is rolled back, with StopContainer and RemoveContainer",
        ),
        (
            "G-15/killed-in-StopPodSandbox",
            Event::StopPodSandbox,
            "StopPodSandbox is sent again",
        ),
        (
            "G-16/killed-in-RemovePodSandbox",
            Event::RemovePodSandbox,
            "RemovePodSandbox is sent again",
        ),
        (
            "G-17/killed-in-RemoveContainer",
            Event::RemoveContainer,
            "RemoveContainer is sent again",
        ),
        (
            "G-20/killed-in-StartContainer",
            Event::StartContainer,
            "the container is CREATED or EXITED, and its pod can be removed",
        ),
        (
            "G-21/killed-in-UpdateContainer",
            Event::UpdateContainer,
            "the container runs on",
        ),
    ] {
        let title = format!("killed while a plugin is in {event:?}: {rest}");
        points.push(Point::new(
            id,
            title,
            Cost::Restart,
            move |stage| async move { killed_in(&stage, event).await },
        ));
    }
    points
}

/// Kills and restarts the runtime. Returns whether the command could apply `with`.
async fn again(s: &Stage, restart: &Restart, with: &With) -> Checked<bool> {
    match restart.again(with).await {
        Ok(Some(client)) => {
            s.run.connected(client);
            Ok(true)
        }
        Ok(None) => Ok(false),
        Err(why) => miss("the runtime starts again", why),
    }
}

/// Returns the restart command of this run.
pub(crate) fn command(s: &Stage) -> Checked<&Restart> {
    match &s.run.restart {
        Some(restart) => Ok(restart),
        None => skip("a way to restart the runtime (--restart-cmd)"),
    }
}

pub(crate) async fn restart(s: &Stage) -> Checked {
    again(s, command(s)?, &With::default()).await.map(drop)
}

async fn notified_once(s: &Stage) -> Checked {
    let pod = s.pod("p").await?;
    pod.stop().await.succeeds("StopPodSandbox")?;
    restart(s).await?;
    let plugin = s.plugin("10", "a").await?;
    let pod = Pod {
        cri: s.cri(),
        ..pod
    };
    pod.ends().await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    same(
        "events",
        vec!["RemovePodSandbox p".to_owned()],
        plugin.lines(),
    )
}

async fn older_pod(s: &Stage) -> Checked {
    let pod = s.pod("p").await?;
    restart(s).await?;
    let plugin = s.plugin("10", "a").await?;
    let pod = Pod {
        cri: s.cri(),
        ..pod
    };
    pod.ends().await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    let expected = ["StopPodSandbox p", "RemovePodSandbox p"];
    plugin.was_notified(&expected)
}

/// A container that exits with code 3 as soon as the file `end` exists in the point's directory.
pub(crate) async fn waiting(s: &Stage) -> Checked<(PathBuf, Pod, Container)> {
    let dir = s.directory()?;
    let pod = s.pod("p").await?;
    let script = "while [ ! -e /share/end ]; do sleep 0.02; done; exit 3";
    let mut config = pod.cri.container_config("c", &["sh", "-c", script]);
    config.mounts = vec![testkit::cri::Mount {
        host_path: dir.display().to_string(),
        container_path: "/share".into(),
        ..Default::default()
    }];
    let container = pod.create_with(config).await.succeeds("CreateContainer")?;
    container.start().await.succeeds("StartContainer")?;
    Ok((dir, pod, container))
}

async fn exit_meanwhile(s: &Stage) -> Checked {
    let (dir, pod, container) = waiting(s).await?;
    let command = command(s)?;
    // The file is created after the kill, which is the first step of the command.
    let end = format!(
        "(sleep 0.2; touch {}/end) & {}",
        dir.display(),
        command.command
    );
    let while_down = Restart {
        command: end,
        ..command.clone()
    };
    again(s, &while_down, &With::default()).await?;
    let plugin = s.plugin("10", "a").await?;
    let cri = s.cri();
    let container = cri.container(&container.id);
    let status = container.exited(crate::stage::PATIENCE).await;
    let status = status.succeeds("ContainerStatus")?;
    same("its state", ContainerState::ContainerExited, status.state())?;
    same("its exit code", 3, status.exit_code)?;
    let pod = Pod { cri, ..pod };
    pod.ends().await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    // The plugin joined after the runtime had notified the connected plugins: it may have got the
    // event or not.
    let reported = plugin.count(Event::StopContainer, "p/c");
    that(
        reported <= 1,
        "StopContainer p/c at most once",
        listed(&plugin.lines()),
    )
}

async fn lists_after(s: &Stage) -> Checked {
    let (pod, container) = s.sleeper("p").await?;
    restart(s).await?;
    let plugin = s.plugin("10", "a").await?;
    let (pods, containers) = plugin.synchronised().await?;
    that(
        pods.iter().any(|p| p.id == pod.id),
        "the pod is listed",
        "it is not",
    )?;
    let listed = containers.iter().any(|c| c.id == container.id);
    that(listed, "the container is listed", "it is not")?;
    let state = s.cri().container(&container.id).state().await;
    let state = state.succeeds("ContainerStatus")?;
    same("its state", ContainerState::ContainerRunning, state)
}

/// Kills the runtime while `event` blocks; then a plugin joins, and CRI removes all objects.
async fn killed_in(s: &Stage, event: Event) -> Checked {
    command(s)?;
    let first = s.plugin("10", "a").await?;
    let stand = before(s, event).await?;
    let call = stand.calls(s, event);
    let hook = s.hold(&first, event, of(event), call).await?;
    let id = hook.seen.pod.id.clone();
    restart(s).await?;
    let _ = hook.returns().await;
    drop(first);
    let second = s.plugin("10", "b").await?;
    let (_, listed) = second.synchronised().await?;
    after(s, event, &stand, &listed).await?;
    if event != Event::RunPodSandbox {
        let cri = s.cri();
        cri.client.stop_pod(&id).await.succeeds("StopPodSandbox")?;
        cri.client
            .remove_pod(&id)
            .await
            .succeeds("RemovePodSandbox")?;
    }
    let left = s.cri().pods().await.succeeds("ListPodSandbox")?;
    same("pods left", 0, left.len())?;
    resumed(&second, event).await
}

/// Checks the interrupted work after a restart.
async fn after(
    s: &Stage,
    event: Event,
    stand: &super::failures::Stand,
    listed: &[nri::proto::Container],
) -> Checked {
    match event {
        Event::RunPodSandbox => {
            eventually("the pod is rolled back", || async {
                match s.cri().pods().await {
                    Ok(pods) if pods.is_empty() => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await
        }
        Event::CreateContainer => {
            eventually("the container is rolled back", || async {
                match s.cri().containers().await {
                    Ok(containers) if containers.is_empty() => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await
        }
        Event::UpdateContainer => {
            let id = stand.container.as_ref().map_or("", |c| &c.id);
            let there = listed.iter().any(|c| c.id == id);
            that(there, "the container is listed", "it is not")?;
            let state = s.cri().container(id).state().await;
            let state = state.succeeds("ContainerStatus")?;
            same("its state", ContainerState::ContainerRunning, state)
        }
        Event::StartContainer => {
            let id = stand.container.as_ref().map_or("", |c| &c.id);
            let state = s.cri().container(id).state().await;
            let state = state.succeeds("ContainerStatus")?;
            that(
                state != ContainerState::ContainerRunning,
                "the container does not run",
                format!("{state:?}"),
            )
        }
        _ => Ok(()),
    }
}

/// A plugin that connects by itself may join after the events of recovery: it gets at most the
/// remaining ones, once and in order.
async fn resumed(plugin: &Plugin, event: Event) -> Checked {
    let lines = plugin.lines();
    let allowed: &[&str] = match event {
        Event::RunPodSandbox | Event::StopPodSandbox => &["StopPodSandbox p", "RemovePodSandbox p"],
        Event::RemovePodSandbox => &["RemovePodSandbox p"],
        Event::CreateContainer => &[
            "StopContainer p/c",
            "RemoveContainer p/c",
            "StopPodSandbox p",
            "RemovePodSandbox p",
        ],
        Event::RemoveContainer => &[
            "RemoveContainer p/c",
            "StopPodSandbox p",
            "RemovePodSandbox p",
        ],
        // A container that was never started gets its StopContainer at its removal.
        _ => &[
            "StopContainer p/c",
            "StopPodSandbox p",
            "StopContainer p/c",
            "RemoveContainer p/c",
            "RemovePodSandbox p",
        ],
    };
    let mut rest = allowed.iter();
    let in_order = lines.iter().all(|line| rest.any(|allowed| allowed == line));
    that(
        in_order,
        format!("a part of: {}", allowed.join(", ")),
        listed(&lines),
    )
}

/// Restarts the runtime with these values, runs `check`, and restores the runtime.
pub(crate) async fn started_with<F>(s: &Stage, with: With, missing: &str, check: F) -> Checked
where
    F: Future<Output = Checked>,
{
    let command = command(s)?;
    if !again(s, command, &with).await? {
        return skip(missing);
    }
    let checked = check.await;
    // Restore in any case: the next point must not see these values.
    let restored = again(s, command, &With::default()).await.map(drop);
    checked.and(restored)
}

/// Restarts the runtime with a required plugin.
async fn requiring<F>(s: &Stage, check: impl FnOnce(Wanted, String) -> F) -> Checked
where
    F: Future<Output = Checked>,
{
    let guard = s.wanted("10", "guard");
    let name = format!("{}-guard", s.run.id);
    let with = With {
        required: guard.id(),
        ..With::default()
    };
    let missing = "a setting by which a plugin is required";
    started_with(s, with, missing, check(guard, name)).await
}

async fn required_for_pods(s: &Stage) -> Checked {
    requiring(s, |guard, name| async move {
        let refused = s.cri().run(s.pod_config("p")).await;
        let error = refused.fails("RunPodSandbox without the required plugin")?;
        one_line_with(&error, &[&name])?;
        let guard = guard.join().await?;
        s.pod("p").await?;
        guard.sees(Event::RunPodSandbox, "p").await.map(drop)
    })
    .await
}

async fn required_for_containers(s: &Stage) -> Checked {
    requiring(s, |guard, name| async move {
        let guard = guard.join().await?;
        let pod = s.pod("p").await?;
        pod.created("c").await?;
        drop(guard);
        let refused = eventually("without it, no container is created", || async {
            match pod.create("d", &SLEEPER).await {
                Err(error) => Ok(error),
                Ok(container) => {
                    let _ = container.remove().await;
                    Err("it is".to_owned())
                }
            }
        });
        let error = refused.await?;
        that(
            error.message().contains(&name),
            format!("the error names {name}"),
            reported(&error),
        )
    })
    .await
}
