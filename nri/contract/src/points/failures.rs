//! Each event with a plugin that fails it: by an error, a timeout, a crash or an invalid answer.
//! Checks the call, the later plugins, and the plugin itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use nri::proto::{Event, FailurePolicy};
use tonic::{Code, Status};

use crate::{
    cri::{Container, Pod, SLEEPER},
    point::{Cost, Point, points},
    raw,
    stage::{PATIENCE, Stage, eventually},
};
use testkit::{
    journal::listed,
    plugin::{Behavior, Plugin},
    verdict::{Answer, Checked, miss, reported, same, skip, that},
};

/// The class of an event, which decides the effect of a plugin's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A failure may stop the call.
    Setup,
    /// Teardown is completed, and every plugin is notified.
    Teardown,
    /// The call does not depend on the answer.
    Notification,
}

/// Every event, its class, and the guarantee about a plugin's error.
pub(super) const EVENTS: [(Event, Class, &str); 13] = [
    (Event::RunPodSandbox, Class::Setup, "C-01.9"),
    (Event::StopPodSandbox, Class::Teardown, "C-02.8"),
    (Event::RemovePodSandbox, Class::Teardown, "C-03.5"),
    (Event::CreateContainer, Class::Setup, "C-04.7"),
    (Event::PostCreateContainer, Class::Notification, "G-11"),
    (Event::StartContainer, Class::Setup, "C-06.2"),
    (Event::PostStartContainer, Class::Notification, "G-11"),
    (Event::UpdateContainer, Class::Setup, "C-08.4"),
    (Event::PostUpdateContainer, Class::Notification, "G-11"),
    (Event::StopContainer, Class::Teardown, "C-10.5"),
    (Event::RemoveContainer, Class::Teardown, "C-11.3"),
    (Event::UpdatePodSandbox, Class::Setup, "C-12.2"),
    (Event::PostUpdatePodSandbox, Class::Notification, "G-11"),
];

/// The failures without an answer.
pub(super) const SILENT: [(&str, Behavior); 3] = [
    ("timeout", Behavior::Hang),
    ("death", Behavior::Die),
    ("garbage", Behavior::Garbage),
];

pub(super) fn points() -> Vec<Point> {
    let mut points = points! {
        Fast "G-11/undecodable-answer" "an undecodable answer fails nothing, and the next pod runs" undecodable;
        Slow "G-07/one-timeout-for-each-plugin" "two plugins that hang delay a call by two request timeouts" one_timeout_each;
        Slow "G-08/no-further-event" "a plugin that was late gets no further event" no_further_event;
        Slow "G-08/comes-back-and-is-synchronised" "it may connect again, and gets the list of all objects" comes_back;
        Slow "G-09/shutdown-before-the-end" "it gets Shutdown before it is closed" shutdown_first;
    };
    for (event, class, of_error) in EVENTS {
        let name = nri::mask::event_name(event);
        let outcome = match class {
            Class::Setup => "fails the call",
            Class::Teardown | Class::Notification => {
                "does not stop the delivery to later plugins, nor fail the call"
            }
        };
        let id = match of_error {
            "G-11" => format!("G-11/error-at-{name}"),
            of_error => format!("{of_error}/error"),
        };
        // A veto of a pod or a container has a point of its own.
        if !matches!(of_error, "C-01.9" | "C-04.7") {
            let title = format!("a plugin's error at {name} {outcome}");
            points.push(Point::new(id, title, Cost::Fast, move |stage| async move {
                at_error(&stage, event, class).await
            }));
        }
        for (how, behavior) in SILENT {
            let guarantee = if how == "timeout" { "G-08" } else { "G-11" };
            let id = format!("{guarantee}/{how}-at-{name}");
            let title = format!(
                "{how} at {name}: the plugin is closed, the call continues, the next plugin gets the event"
            );
            let cost = if how == "timeout" {
                Cost::Slow
            } else {
                Cost::Fast
            };
            points.push(Point::new(id, title, cost, move |stage| {
                let behavior = behavior.clone();
                async move { at_silence(&stage, event, behavior).await }
            }));
        }
    }
    points
}

/// A pod's life up to an event.
pub(super) struct Stand {
    pub pod: Option<Pod>,
    pub container: Option<Container>,
}

/// Makes the objects that the call of an event needs.
pub(super) async fn before(s: &Stage, event: Event) -> Checked<Stand> {
    let (mut pod, mut container) = (None, None);
    match event {
        Event::RunPodSandbox => {}
        Event::StopPodSandbox
        | Event::RemovePodSandbox
        | Event::CreateContainer
        | Event::PostCreateContainer
        | Event::UpdatePodSandbox
        | Event::PostUpdatePodSandbox => pod = Some(s.pod("p").await?),
        Event::StartContainer | Event::PostStartContainer => {
            let made = s.pod("p").await?;
            let created = made.create("c", &SLEEPER).await;
            container = Some(created.succeeds("CreateContainer")?);
            pod = Some(made);
        }
        _ => {
            let (made, runs) = s.sleeper("p").await?;
            (pod, container) = (Some(made), Some(runs));
        }
    }
    match (event, &pod, &container) {
        (Event::RemovePodSandbox, Some(pod), _) => pod.stop().await.succeeds("StopPodSandbox")?,
        (Event::RemoveContainer, _, Some(container)) => {
            container.stop().await.succeeds("StopContainer")?;
        }
        _ => {}
    }
    Ok(Stand { pod, container })
}

impl Stand {
    /// Makes the call of an event. A runtime that lacks the call skips the point.
    pub(super) async fn call(&self, s: &Stage, event: Event) -> Checked<Result<(), Status>> {
        match self.calls(s, event).await {
            Err(status) if status.code() == Code::Unimplemented => {
                skip("the CRI call UpdatePodSandboxResources")
            }
            answer => Ok(answer),
        }
    }

    /// As [`Stand::call`], but returns the runtime's answer.
    pub(super) fn calls(
        &self,
        s: &Stage,
        event: Event,
    ) -> impl Future<Output = Result<(), Status>> + Send + use<> {
        let (cri, config) = (s.cri(), s.pod_config("p"));
        let (pod, container) = (self.pod.clone(), self.container.clone());
        async move {
            match (event, &pod, &container) {
                (Event::RunPodSandbox, ..) => cri.run(config).await.map(drop),
                (Event::StopPodSandbox, Some(pod), _) => pod.stop().await,
                (Event::RemovePodSandbox, Some(pod), _) => pod.remove().await,
                (Event::UpdatePodSandbox | Event::PostUpdatePodSandbox, Some(pod), _) => {
                    pod.update(333).await
                }
                (Event::CreateContainer | Event::PostCreateContainer, Some(pod), _) => {
                    pod.create("c", &SLEEPER).await.map(drop)
                }
                (Event::StartContainer | Event::PostStartContainer, _, Some(c)) => c.start().await,
                (Event::StopContainer, _, Some(c)) => c.stop().await,
                (Event::RemoveContainer, _, Some(c)) => c.remove().await,
                (_, _, Some(c)) => {
                    let change = testkit::cri::LinuxContainerResources {
                        cpu_shares: 300,
                        ..Default::default()
                    };
                    c.update(change).await
                }
                _ => Err(Status::internal(format!("no life leads to {event:?}"))),
            }
        }
    }
}

/// Returns "p" or "p/c".
pub(super) fn of(event: Event) -> &'static str {
    match event {
        Event::RunPodSandbox
        | Event::StopPodSandbox
        | Event::RemovePodSandbox
        | Event::UpdatePodSandbox
        | Event::PostUpdatePodSandbox => "p",
        _ => "p/c",
    }
}

/// Connects the hostile plugin, which is called first, and then the good one.
pub(super) async fn pair(s: &Stage, policy: Option<FailurePolicy>) -> Checked<(Plugin, Plugin)> {
    let hostile = s.plugin_with("10", "hostile", policy).await?;
    Ok((hostile, s.plugin("20", "good").await?))
}

async fn at_error(s: &Stage, event: Event, class: Class) -> Checked {
    let (hostile, good) = pair(s, None).await?;
    let stand = before(s, event).await?;
    hostile.does(event, Behavior::Error("refused on purpose".into()));
    let answer = stand.call(s, event).await?;
    if class == Class::Setup {
        let error = answer.fails(&format!("the call of {event:?}"))?;
        that(
            error.message().contains("refused on purpose"),
            "the error has the plugin's reason",
            reported(&error),
        )?;
        same(
            "the event at the plugin behind it",
            0,
            good.count(event, of(event)),
        )?;
    } else {
        answer.succeeds(&format!("the call of {event:?}"))?;
        good.sees(event, of(event)).await?;
    }
    let closed = hostile.is_closed(super::run::QUIET).await;
    that(
        !closed,
        "a plugin that answers with an error stays connected",
        "it is closed",
    )
}

async fn at_silence(s: &Stage, event: Event, behavior: Behavior) -> Checked {
    let (hostile, good) = pair(s, None).await?;
    let stand = before(s, event).await?;
    hostile.does(event, behavior);
    let answer = stand.call(s, event).await?;
    answer.succeeds(&format!("the call of {event:?}"))?;
    good.sees(event, of(event)).await?;
    let closed = hostile.is_closed(PATIENCE).await;
    that(
        closed,
        "the plugin is closed",
        format!("it is connected after {PATIENCE:?}"),
    )?;
    // The runtime must still work.
    let next = s.pod("next").await?;
    good.sees(Event::RunPodSandbox, "next").await?;
    next.end().await.succeeds("the next pod's end")
}

async fn undecodable(s: &Stage) -> Checked {
    let good = s.plugin("20", "good").await?;
    let mut raw = raw::connect(&s.run.nri).await?;
    raw.register("10", &format!("{}-raw", s.run.id)).await;
    let subscribed = nri::EventMask::of(Event::RunPodSandbox).to_wire();
    let (cri, config) = (s.cri(), s.pod_config("p"));
    // The plugin is active after it has answered Synchronize: create pods until it gets one.
    let enough = Arc::new(AtomicBool::new(false));
    let reported = enough.clone();
    let runs = s.call(async move {
        while !reported.load(Ordering::SeqCst) {
            let pod = cri.run(config.clone()).await?;
            pod.end().await?;
        }
        Ok::<_, Status>(())
    });
    let asked = raw::until(&mut raw, "RunPodSandbox", subscribed).await;
    if let Ok(asked) = &asked {
        raw.answer(asked, vec![0xff; 20]).await;
    }
    let more = eventually("another pod comes to the good plugin", || async {
        let count = good.count(Event::RemovePodSandbox, "p");
        // The pod with the undecodable answer, and the next one.
        let over = count >= 2 || runs.is_finished();
        over.then_some(()).ok_or_else(|| listed(&good.lines()))
    });
    let more = more.await;
    // A dropped call may still make a pod, so let the loop end by itself.
    enough.store(true, Ordering::SeqCst);
    let ran = runs.await;
    asked.and(more)?;
    match ran {
        Ok(ran) => ran.succeeds("RunPodSandbox with an undecodable answer of one plugin"),
        Err(error) => miss("pods run on", error),
    }
}

async fn one_timeout_each(s: &Stage) -> Checked {
    let (one, two) = (s.plugin("10", "a").await?, s.plugin("20", "b").await?);
    for plugin in [&one, &two] {
        plugin.does(Event::RunPodSandbox, Behavior::Hang);
    }
    let begun = Instant::now();
    s.pod("p").await?;
    let (took, limit) = (begun.elapsed(), s.run.request_timeout);
    if took >= limit * 3 {
        s.hurry();
    }
    that(
        took >= limit * 2 && took < limit * 3,
        format!("RunPodSandbox takes two request timeouts, {:?}", limit * 2),
        format!("{took:?}"),
    )
}

/// A plugin that timed out at C-01 of the pod `p`; the pod runs.
async fn late(s: &Stage) -> Checked<(Plugin, Plugin, Pod)> {
    let (hostile, good) = pair(s, None).await?;
    hostile.does(Event::RunPodSandbox, Behavior::Hang);
    let pod = s.pod("p").await?;
    Ok((hostile, good, pod))
}

async fn no_further_event(s: &Stage) -> Checked {
    let (hostile, good, pod) = late(s).await?;
    hostile.behaves();
    pod.start("c", &SLEEPER)
        .await
        .succeeds("a container's start")?;
    pod.ends().await?;
    good.sees(Event::RemovePodSandbox, "p").await?;
    that(
        hostile.lines() == ["RunPodSandbox p"],
        "nothing but RunPodSandbox p",
        listed(&hostile.lines()),
    )
}

async fn comes_back(s: &Stage) -> Checked {
    let (hostile, _good, pod) = late(s).await?;
    drop(hostile);
    let again = s.plugin("10", "hostile").await?;
    let (pods, _) = again.synchronised().await?;
    that(
        pods.iter().any(|p| p.id == pod.id),
        "Synchronize lists the pod",
        format!("{} other pods", pods.len()),
    )?;
    pod.ends().await?;
    again.sees(Event::RemovePodSandbox, "p").await.map(drop)
}

async fn shutdown_first(s: &Stage) -> Checked {
    let (hostile, _good, _) = late(s).await?;
    let closed = hostile.is_closed(PATIENCE).await;
    that(closed, "the plugin is closed", "it is connected")?;
    that(hostile.was_shut_down(), "it got Shutdown", "it did not")
}
