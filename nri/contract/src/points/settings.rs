//! Guarantees that need other settings of the runtime: a plugin's settings (G-30 to G-38), or a
//! failure of the runtime's own at one step (C-01.10, C-02.10). Skipped if the restart command does
//! not support them.

use std::time::{Duration, Instant};

use nri::{
    adjust::Adjust,
    proto::{CreateContainerResponse, Event},
};
use testkit::cri::PodSandboxState;

use super::{
    restarts::started_with,
    run::{QUIET, leftover},
};
use crate::{
    cri::{Container, SLEEPER},
    point::{Point, points},
    restart::With,
    stage::{PATIENCE, Stage, eventually},
};
use testkit::{
    journal::listed,
    plugin::{Behavior, Plugin, Wanted},
    verdict::{Answer, Checked, reported, same, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Restart "C-01.10/unwritten-record" "when the record cannot be written after RunPodSandbox, all plugins get StopPodSandbox and RemovePodSandbox, and nothing is left" unwritten_record;
        Restart "C-02.10/resumed-without-the-event" "a stop that failed after StopPodSandbox resumes without it" resumed_stop;
        Restart "G-30/tolerated" "a pod with the annotation runs without the required plugin, another one does not" tolerated;
        Restart "G-31/kept-in-order" "what a must-run plugin missed comes after its Synchronize, in order, until it was answered" kept_in_order;
        Restart "G-34/a-late-creation-is-undone" "a late answer to CreateContainer is dropped, and taken back by StopContainer and RemoveContainer" late_creation;
        Restart "G-34/left-alone-meanwhile" "a plugin that owes an answer gets no event, and gets them again when it has answered" left_alone;
        Restart "G-35/breaker" "so many events missed in a row close the plugin, not one less" breaker;
        Restart "G-35/never" "with breaker = 0 it is not closed" breaker_never;
        Restart "G-36/events" "a plugin gets the events of its table, whatever it subscribes to" events;
        Restart "G-36/fields" "a field that it may not adjust fails the creation, naming plugin and field" fields;
        Restart "G-38/request-timeout" "a plugin's own request timeout closes it, whatever the runtime's" own_timeout;
    }
}

/// A short timeout of the plugin's own, far below the runtime's.
const LIMIT: &str = "request_timeout = \"700ms\"";

/// Restarts the runtime with settings of a plugin. `check` gets the plugin before it connects.
async fn set<F>(s: &Stage, settings: &str, check: impl FnOnce(Wanted) -> F) -> Checked
where
    F: Future<Output = Checked>,
{
    let plugin = s.wanted("10", "set");
    let with = With {
        plugin: plugin.id(),
        settings: settings.to_owned(),
        ..With::default()
    };
    let missing = "settings of single plugins";
    let check = check(plugin);
    let checked = async {
        let checked = check.await;
        // On a busy host a working plugin may exceed its own short timeout.
        if settings.contains("request_timeout") && checked.is_err() {
            s.hurry();
        }
        checked
    };
    started_with(s, with, missing, checked).await
}

/// Restarts the runtime so that one of its own steps fails once.
async fn troubled(
    s: &Stage,
    trouble: &'static str,
    check: impl Future<Output = Checked>,
) -> Checked {
    let with = With {
        trouble,
        ..With::default()
    };
    let missing = format!("a way to make it fail at {trouble}");
    started_with(s, with, &missing, check).await
}

async fn unwritten_record(s: &Stage) -> Checked {
    troubled(s, "record-after-run", async {
        let plugin = s.plugin("10", "a").await?;
        let ran = s.cri().run(s.pod_config("p")).await;
        ran.fails("RunPodSandbox")?;
        let pod = plugin.sees(Event::RemovePodSandbox, "p").await?.pod;
        let expected = ["RunPodSandbox p", "StopPodSandbox p", "RemovePodSandbox p"];
        plugin.was_notified(&expected)?;
        let left = s.cri().pods().await.succeeds("ListPodSandbox")?;
        same("sandboxes listed", 0, left.len())?;
        eventually("nothing of the sandbox is left", || async {
            leftover(&pod).map_or(Ok(()), Err)
        })
        .await?;
        s.pod("p").await.map(drop)
    })
    .await
}

async fn resumed_stop(s: &Stage) -> Checked {
    troubled(s, "network-at-stop", async {
        let plugin = s.plugin("10", "a").await?;
        let pod = s.pod("p").await?;
        let failed = pod.stop().await;
        failed.fails("the first StopPodSandbox")?;
        let state = pod.status().await.succeeds("PodSandboxStatus")?.state();
        same("state", PodSandboxState::SandboxNotready, state)?;
        pod.stop().await.succeeds("the second StopPodSandbox")?;
        pod.remove().await.succeeds("RemovePodSandbox")?;
        plugin.sees(Event::RemovePodSandbox, "p").await?;
        let stops = plugin.count(Event::StopPodSandbox, "p");
        same("StopPodSandbox events", 1, stops)
    })
    .await
}

const TOLERATE: &str = "nri-contract.tolerate";

async fn tolerated(s: &Stage) -> Checked {
    let with = With {
        required: s.wanted("10", "guard").id(),
        tolerate: TOLERATE.into(),
        ..With::default()
    };
    started_with(s, with, "an annotation that lets a pod through", async {
        let refused = s.cri().run(s.pod_config("refused")).await;
        refused.fails("RunPodSandbox without the required plugin")?;
        let mut config = s.pod_config("p");
        config
            .annotations
            .extend([(TOLERATE.into(), "true".into())]);
        let pod = s.cri().run(config).await.succeeds("RunPodSandbox")?;
        let created = pod.create("c", &SLEEPER).await;
        created.succeeds("CreateContainer").map(drop)
    })
    .await
}

async fn kept_in_order(s: &Stage) -> Checked {
    let keep = format!("must_run = true\n{LIMIT}");
    set(s, &keep, |wanted| async move {
        let plugin = wanted.join().await?;
        // The plugin under test is called first: an event at `other` has already passed it.
        let other = s.plugin("20", "other").await?;
        let (pod, _) = s.sleeper("p").await?;
        drop(plugin);
        pod.ends().await?;
        other.sees(Event::RemovePodSandbox, "p").await?;
        let missed = [
            "StopContainer p/c",
            "StopPodSandbox p",
            "RemoveContainer p/c",
            "RemovePodSandbox p",
        ];
        // The plugin hangs in the second event: this event and the later ones are not acknowledged.
        let before = s.journal.all().len();
        let late = s
            .wanted("10", "set")
            .does_from_the_start(Event::StopPodSandbox, Behavior::Hang);
        let late = late.join().await?;
        let closed = late.is_closed(PATIENCE).await;
        that(
            closed,
            "a plugin that hangs in them is closed",
            "it is connected",
        )?;
        let first = since(s, &late, before);
        that(first == missed[..2], missed[..2].join(", "), listed(&first))?;
        drop(late);
        let before = s.journal.all().len();
        let again = s.wanted("10", "set").join().await?;
        again.sees(Event::RemovePodSandbox, "p").await?;
        s.pod("q").await?;
        again.sees(Event::RunPodSandbox, "q").await?;
        let lines = since(s, &again, before);
        let mut expected = missed[1..].to_vec();
        expected.push("RunPodSandbox q");
        that(
            lines == expected,
            format!("and afterwards {}", expected.join(", ")),
            listed(&lines),
        )
    })
    .await
}

/// Returns the plugin's events from the number `first` in the journal on: those of its last life.
fn since(s: &Stage, plugin: &Plugin, first: usize) -> Vec<String> {
    let all = plugin.seen().into_iter();
    let all = all.filter(|seen| seen.number >= first);
    all.map(|seen| seen.line(&s.journal.prefix)).collect()
}

/// A plugin that sets a variable and times out at the creation of `c`. The container runs without
/// the variable.
async fn late_at_creation(s: &Stage, wanted: Wanted) -> Checked<(Plugin, Plugin, Container, Gate)> {
    let (plugin, other) = (wanted.join().await?, s.plugin("20", "other").await?);
    let pod = s.pod("p").await?;
    plugin.creates(|_| {
        let mut answer = CreateContainerResponse::default();
        answer.adjust.get_or_insert_default().add_env("LATE", "yes");
        answer
    });
    let gate = Gate(std::sync::Arc::new(tokio::sync::Semaphore::new(0)));
    plugin.does(Event::CreateContainer, Behavior::Wait(gate.0.clone()));
    let started = pod.start("c", &SLEEPER).await;
    let container = started.succeeds("CreateContainer, StartContainer")?;
    Ok((plugin, other, container, gate))
}

/// Releases the plugin's answer.
struct Gate(std::sync::Arc<tokio::sync::Semaphore>);

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.add_permits(1_000);
    }
}

const SKIP: &str = "on_timeout = \"skip\"\nrequest_timeout = \"700ms\"\nbreaker = 0";

async fn late_creation(s: &Stage) -> Checked {
    set(s, SKIP, |wanted| async move {
        let (plugin, _other, container, gate) = late_at_creation(s, wanted).await?;
        drop(gate);
        plugin.sees(Event::RemoveContainer, "p/c").await?;
        let lines = plugin.lines();
        let expected = ["StopContainer p/c", "RemoveContainer p/c"];
        that(
            lines.ends_with(&expected.map(String::from)),
            expected.join(", "),
            listed(&lines),
        )?;
        let (printed, _) = container.sh("echo got:$LATE").await.succeeds("ExecSync")?;
        same("the variable of the late answer", "got:", printed.as_str())
    })
    .await
}

async fn left_alone(s: &Stage) -> Checked {
    set(s, SKIP, |wanted| async move {
        let (plugin, other, _, gate) = late_at_creation(s, wanted).await?;
        other.sees(Event::PostStartContainer, "p/c").await?;
        plugin.was_notified(&["RunPodSandbox p", "CreateContainer p/c"])?;
        drop(gate);
        plugin.sees(Event::RemoveContainer, "p/c").await?;
        s.pod("next").await?;
        plugin.sees(Event::RunPodSandbox, "next").await.map(drop)
    })
    .await
}

async fn breaker(s: &Stage) -> Checked {
    let settings = format!("on_timeout = \"skip\"\nbreaker = 3\n{LIMIT}");
    set(s, &settings, |wanted| async move {
        let plugin = wanted.join().await?;
        let pod = s.pod("p").await?;
        plugin.does(Event::CreateContainer, Behavior::Hang);
        // The plugin misses CreateContainer, then PostCreateContainer.
        let created = pod.create("c", &SLEEPER).await;
        let container = created.succeeds("CreateContainer")?;
        let early = plugin.is_closed(QUIET).await;
        that(!early, "after two events it is connected", "it is closed")?;
        container.start().await.succeeds("StartContainer")?;
        let closed = plugin.is_closed(PATIENCE).await;
        that(closed, "after three events it is closed", "it is connected")
    })
    .await
}

async fn breaker_never(s: &Stage) -> Checked {
    set(s, SKIP, |wanted| async move {
        let plugin = wanted.join().await?;
        let pod = s.pod("p").await?;
        plugin.does(Event::CreateContainer, Behavior::Hang);
        let container = pod.start("c", &SLEEPER).await;
        container.succeeds("CreateContainer, StartContainer")?;
        pod.ends().await?;
        let closed = plugin.is_closed(QUIET).await;
        that(!closed, "it is connected", "it is closed")
    })
    .await
}

const LIMITED: &str = "events = \"CreateContainer\"\nfields = \"Annotations\"";

/// A plugin that requests all events, and sets an annotation and a variable.
async fn limited(wanted: Wanted) -> Checked<Plugin> {
    let plugin = wanted.join().await?;
    plugin.adjusts(|adjust| {
        adjust.add_annotation("permitted", "yes");
        adjust.add_env("FORBIDDEN", "yes");
    });
    Ok(plugin)
}

async fn events(s: &Stage) -> Checked {
    set(s, "events = \"CreateContainer\"", |wanted| async move {
        let (plugin, other) = (wanted.join().await?, s.plugin("20", "other").await?);
        let (pod, _) = s.sleeper("p").await?;
        pod.ends().await?;
        other.sees(Event::RemovePodSandbox, "p").await?;
        plugin.was_notified(&["CreateContainer p/c"])
    })
    .await
}

async fn fields(s: &Stage) -> Checked {
    set(s, LIMITED, |wanted| async move {
        let plugin = limited(wanted).await?;
        let pod = s.pod("p").await?;
        let error = pod.create("c", &SLEEPER).await.fails("CreateContainer")?;
        that(
            error.message().contains(plugin.id()) && error.message().contains("Env"),
            format!("an error with {} and Env", plugin.id()),
            reported(&error),
        )
    })
    .await
}

async fn own_timeout(s: &Stage) -> Checked {
    set(s, LIMIT, |wanted| async move {
        let plugin = wanted.join().await?;
        plugin.does(Event::RunPodSandbox, Behavior::Hang);
        let begun = Instant::now();
        s.pod("p").await?;
        let took = begun.elapsed();
        let (limit, others) = (Duration::from_millis(700), s.run.request_timeout);
        that(
            took >= limit && took < others,
            format!("RunPodSandbox takes {limit:?}, and less than the runtime's {others:?}"),
            format!("{took:?}"),
        )?;
        let closed = plugin.is_closed(PATIENCE).await;
        that(closed, "the plugin is closed", "it is connected")
    })
    .await
}
