//! G-13 to G-19 with a plugin that the runtime launches. It is connected before the runtime answers
//! any call, so that the table of restarts determines exactly the events that it gets. G-37: the
//! plugin's own restart.

use nri::proto::Event;
use testkit::cri::{ContainerState, PodSandboxState};

use super::{
    failures::{before, of},
    restarts::{restart, started_with, waiting},
};
use crate::{
    point::{Cost, Point, points},
    restart::With,
    stage::{Stage, eventually},
    witness::Witness,
};
use testkit::verdict::{Answer, Checked, miss, same, that};

/// A guarantee, the event during which the runtime is killed, the content of the next Synchronize,
/// and the events after it.
type Row = (
    &'static str,
    Event,
    &'static [&'static str],
    &'static [&'static str],
);

const ROLLED_BACK: &[&str] = &["StopPodSandbox p", "RemovePodSandbox p"];
const UNDONE: &[&str] = &["StopContainer p/c", "RemoveContainer p/c"];
const BOTH: &[&str] = &["p", "p/c"];

#[rustfmt::skip]
const TABLE: [Row; 13] = [
    ("G-13", Event::RunPodSandbox, &[], ROLLED_BACK),
    ("G-14", Event::CreateContainer, &["p"], UNDONE),
    ("G-15", Event::StopPodSandbox, &["p"], &["StopPodSandbox p"]),
    ("G-16", Event::RemovePodSandbox, &[], &["RemovePodSandbox p"]),
    ("G-17", Event::RemoveContainer, &["p"], &["RemoveContainer p/c"]),
    ("G-19", Event::StopContainer, &["p"], &["StopContainer p/c"]),
    ("G-20", Event::StartContainer, BOTH, &[]),
    ("G-21", Event::UpdateContainer, BOTH, &[]),
    ("G-21", Event::PostCreateContainer, BOTH, &[]),
    ("G-21", Event::PostStartContainer, BOTH, &[]),
    ("G-21", Event::PostUpdateContainer, BOTH, &[]),
    ("G-21", Event::UpdatePodSandbox, &["p"], &[]),
    ("G-21", Event::PostUpdatePodSandbox, &["p"], &[]),
];

pub(super) fn points() -> Vec<Point> {
    let mut points = points! {
        Restart "G-18/an-exit-meanwhile" "a container that ended while the runtime was down is listed as it was, and its end is reported once" exit_meanwhile;
        Restart "G-37/started-again" "a launched plugin that ended is started again, and gets the list of existing objects" started_again;
    };
    for (guarantee, event, listed, reported) in TABLE {
        let what = match reported {
            [] => "nothing".to_owned(),
            reported => reported.join(", "),
        };
        let title = format!(
            "killed in {event:?}: a launched plugin gets {what}, before any call is answered"
        );
        let id = match event {
            Event::UpdateContainer => "G-21/continued-by-the-next-one".to_owned(),
            _ if guarantee == "G-21" => format!("G-21/{}", nri::mask::event_name(event)),
            _ => format!("{guarantee}/continued-by-the-next-one"),
        };
        points.push(Point::new(
            id,
            title,
            Cost::Restart,
            move |stage| async move { reported_next(&stage, event, listed, reported).await },
        ));
    }
    points
}

async fn reported_next(s: &Stage, event: Event, listed: &[&str], reported: &[&str]) -> Checked {
    let witness = Witness::of(s).await?;
    let blocker = s.plugin("10", "a").await?;
    let stand = before(s, event).await?;
    let call = stand.calls(s, event);
    let hook = s.hold(&blocker, event, of(event), call).await?;
    restart(s).await?;
    // The runtime has answered, so it has sent all events of the interrupted work.
    let life = witness.last_life();
    let _ = hook.returns().await;
    that(
        life.listed == listed,
        format!("Synchronize lists {listed:?}"),
        format!("{:?}", life.listed),
    )?;
    that(
        life.events == reported,
        format!("then it gets {reported:?}"),
        format!("{:?}", life.events),
    )?;
    if life.listed == BOTH {
        let containers = s.cri().containers().await.succeeds("ListContainers")?;
        let expected = match event {
            Event::StartContainer | Event::PostCreateContainer => ContainerState::ContainerCreated,
            _ => ContainerState::ContainerRunning,
        };
        let state = containers.first().map(testkit::cri::Container::state);
        same("the container's state", Some(expected), state)?;
    }
    rest(s, event).await
}

/// The runtime completes the interrupted work without a CRI call, except for a start, which CRI
/// must repeat.
async fn rest(s: &Stage, event: Event) -> Checked {
    let cri = s.cri();
    match event {
        Event::StopPodSandbox => {
            eventually("the pod is NOTREADY", || async {
                let pods = cri.pods().await.map_err(|status| status.to_string())?;
                let stopped = pods
                    .iter()
                    .all(|p| p.state() == PodSandboxState::SandboxNotready);
                (pods.len() == 1 && stopped)
                    .then_some(())
                    .ok_or_else(|| format!("{pods:?}"))
            })
            .await
        }
        Event::RemovePodSandbox => {
            eventually("the pod is removed", || async {
                let pods = cri.pods().await.map_err(|status| status.to_string())?;
                pods.is_empty()
                    .then_some(())
                    .ok_or_else(|| format!("{pods:?}"))
            })
            .await
        }
        Event::RemoveContainer => {
            eventually("the container is removed", || async {
                let all = cri
                    .containers()
                    .await
                    .map_err(|status| status.to_string())?;
                all.is_empty()
                    .then_some(())
                    .ok_or_else(|| format!("{all:?}"))
            })
            .await
        }
        Event::StartContainer => {
            let containers = cri.containers().await.succeeds("ListContainers")?;
            let id = containers.first().map_or("", |c| &c.id);
            let container = cri.container(id);
            container.start().await.succeeds("StartContainer again")?;
            let state = container.state().await.succeeds("ContainerStatus")?;
            same("its state then", ContainerState::ContainerRunning, state)
        }
        _ => Ok(()),
    }
}

async fn exit_meanwhile(s: &Stage) -> Checked {
    let witness = Witness::of(s).await?;
    let (dir, pod, container) = waiting(s).await?;
    // The plugin ends as soon as no process answers at the NRI socket.
    let nri = s.run.nri.clone();
    let ends = s.call(async move {
        while tokio::net::UnixStream::connect(&nri).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        std::fs::write(dir.join("end"), "")
    });
    restart(s).await?;
    let ended = ends.await;
    if !matches!(ended, Ok(Ok(()))) {
        return miss("the container gets its stop signal", format!("{ended:?}"));
    }
    let reported = ["StopContainer p/c"];
    let life = witness
        .life_that("its end is reported after the restart", |life| {
            life.events == reported
        })
        .await?;
    same("what Synchronize lists", vec!["p", "p/c"], life.listed)?;
    let status = s.cri().container(&container.id).status().await;
    let status = status.succeeds("ContainerStatus")?;
    let found = (status.state(), status.exit_code);
    let expected = (ContainerState::ContainerExited, 3);
    same("its state and exit code", expected, found)?;
    restart(s).await?;
    let again = witness.last_life();
    same("events after another restart", 0, again.events.len())?;
    let pod = s.cri().pod(pod.id, pod.config);
    pod.ends().await?;
    let stops = witness.last_life().events;
    let stops = stops.iter().filter(|line| **line == reported[0]);
    same(
        "StopContainer events of p/c from then to its removal",
        0,
        stops.count(),
    )
}

async fn started_again(s: &Stage) -> Checked {
    let witness = Witness::of(s).await?;
    let with = With {
        plugin: witness.id().to_owned(),
        settings: "restart = \"on-failure\"".into(),
        ..With::default()
    };
    started_with(
        s,
        with,
        "a setting by which a launched plugin is started again",
        async {
            let pod = s.pod("p").await?;
            let first = witness
                .life_that("it is synchronised", |life| life.synchronised)
                .await?;
            witness.kill(&first)?;
            witness
                .life_that("it has joined again, with the pod in its list", |life| {
                    life.pid != first.pid && life.listed == ["p"]
                })
                .await?;
            pod.remove().await.succeeds("RemovePodSandbox")?;
            eventually("it gets events again", || async {
                let reported = witness.last_life().events;
                let all = reported == ["StopPodSandbox p", "RemovePodSandbox p"];
                all.then_some(()).ok_or_else(|| reported.join(", "))
            })
            .await
        },
    )
    .await
}
