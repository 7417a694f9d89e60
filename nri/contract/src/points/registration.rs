//! G-10 and G-39 to G-41: the accepted plugins and their protocols.

use std::time::{Duration, Instant};

use nri::{proto::Event, stub::Protocol};
use testkit::raw::Raw;

use crate::{
    point::{Point, points},
    raw,
    stage::{PATIENCE, Stage, eventually},
};
use testkit::{
    journal::listed,
    plugin::Behavior,
    verdict::{Answer, Checked, miss, same, skip, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "G-10/bad-index" "a plugin whose index is not two digits is turned away" bad_index;
        Fast "G-10/no-name" "a plugin without a name is turned away" no_name;
        Slow "G-10/silent-connection" "a connection that never registers is closed, and delays no other" silent;
        Slow "G-10/configure-unanswered" "a plugin that does not answer Configure is closed, and delays no other" configure;
        Fast "G-10/error-at-synchronize" "a plugin that answers Synchronize with an error gets no event" error_at_synchronize;
        Fast "G-10/dies-at-synchronize" "a plugin that dies in Synchronize is left out, and pods run" dies_at_synchronize;
        Fast "G-10/gets-its-times" "Configure names the runtime and both timeouts" gets_its_times;
        Fast "G-11/garbage-instead-of-registration" "a connection that sends garbage is closed, and pods run" garbage;
        Fast "G-39/state-change-only" "a plugin of the first generation gets plain events by StateChange, and may answer the others" state_change;
        Fast "G-40/v1beta1" "a plugin that asks for v1beta1 gets every event of a life" v1beta1;
        Slow "G-09/the-reason-is-sent" "through v1beta1, Shutdown gives the reason" reason_of_shutdown;
        Fast "G-40/replacement" "a newer instance of it takes the older one's place" replacement;
        Fast "G-41/rollout" "of two plugins of one index and name the newest is called, and the older again once the newest has ended" rollout;
    }
}

async fn turned_away(s: &Stage, index: &str, name: &str) -> Checked {
    let mut raw = raw::connect(&s.run.nri).await?;
    raw.register(index, name).await;
    let away = raw.is_turned_away(Duration::from_secs(3)).await;
    that(
        away,
        "the registration is refused, or the connection closed",
        "it is taken",
    )
}

async fn bad_index(s: &Stage) -> Checked {
    turned_away(s, "1x", &format!("{}-bad", s.run.id)).await
}
async fn no_name(s: &Stage) -> Checked {
    turned_away(s, "10", "").await
}

/// Registration has a limit of five seconds. A connection that is open after twice that time is not
/// closed.
const REGISTRATION: Duration = Duration::from_secs(10);

/// Checks that pods run while a connection hangs, and that the connection is closed.
async fn holds_nobody_up(s: &Stage, mut raw: Raw) -> Checked {
    let begun = Instant::now();
    let pod = s.pod("p").await?;
    pod.ends().await?;
    let took = begun.elapsed();
    let limit = REGISTRATION / 2 - Duration::from_secs(1);
    if took >= limit {
        s.hurry();
    }
    that(
        took < limit,
        "a pod runs and ends meanwhile",
        format!("it took {took:?}"),
    )?;
    let away = raw.is_turned_away(REGISTRATION).await;
    that(
        away,
        format!("it is closed within {REGISTRATION:?}"),
        "it is open",
    )
}

async fn silent(s: &Stage) -> Checked {
    holds_nobody_up(s, raw::connect(&s.run.nri).await?).await
}

async fn configure(s: &Stage) -> Checked {
    let mut raw = raw::connect(&s.run.nri).await?;
    raw.register("10", &format!("{}-mute", s.run.id)).await;
    holds_nobody_up(s, raw).await
}

async fn garbage(s: &Stage) -> Checked {
    use std::io::Write;
    let mut raw = std::os::unix::net::UnixStream::connect(&s.run.nri)
        .or_else(|e| miss("the NRI socket takes connections", e))?;
    let _ = raw.write_all(&[0xff; 300]);
    let pod = s.pod("p").await?;
    pod.ends().await
}

async fn error_at_synchronize(s: &Stage) -> Checked {
    let bad = s
        .wanted("10", "bad")
        .at_synchronize(Behavior::Error("not now".into()));
    // The runtime may close the connection or ignore it.
    let bad = bad.try_start().await;
    let good = s.plugin("20", "good").await?;
    s.pod("p").await?;
    good.sees(Event::RunPodSandbox, "p").await?;
    let heard = bad.map(|plugin| plugin.lines()).unwrap_or_default();
    that(heard.is_empty(), "no event", listed(&heard))
}

async fn dies_at_synchronize(s: &Stage) -> Checked {
    let bad = s
        .wanted("10", "bad")
        .at_synchronize(Behavior::Die)
        .try_start()
        .await;
    let pod = s.pod("p").await?;
    drop(bad);
    pod.ends().await
}

async fn gets_its_times(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let info = plugin.info();
    that(
        !info.name.is_empty()
            && info.registration_timeout > Duration::ZERO
            && info.request_timeout > Duration::ZERO,
        "a name and both timeouts",
        format!("{info:?}"),
    )
}

/// Runs a complete life of a pod, for the events of a plugin with another protocol.
async fn life(s: &Stage) -> Checked {
    let (pod, container) = s.sleeper("p").await?;
    container.stop().await.succeeds("StopContainer")?;
    container.remove().await.succeeds("RemoveContainer")?;
    pod.ends().await
}

const LIFE: [&str; 9] = [
    "RunPodSandbox p",
    "CreateContainer p/c",
    "PostCreateContainer p/c",
    "StartContainer p/c",
    "PostStartContainer p/c",
    "StopContainer p/c",
    "RemoveContainer p/c",
    "StopPodSandbox p",
    "RemovePodSandbox p",
];

async fn state_change(s: &Stage) -> Checked {
    let plugin = s.wanted("10", "old").state_change_only().join().await?;
    life(s).await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    plugin.was_notified(&LIFE)
}

/// A plugin that uses v1beta1, if the runtime supports it.
async fn beta(s: &Stage) -> Checked<testkit::plugin::Plugin> {
    let wanted = s.wanted("10", "beta").protocol(Protocol::V1Beta1);
    match wanted.try_start().await {
        Err(why) => skip(format!("the protocol v1beta1: {why}")),
        Ok(plugin) => {
            plugin.synchronised().await?;
            Ok(plugin)
        }
    }
}

async fn v1beta1(s: &Stage) -> Checked {
    let plugin = beta(s).await?;
    life(s).await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    plugin.was_notified(&LIFE)
}

async fn reason_of_shutdown(s: &Stage) -> Checked {
    let plugin = beta(s).await?;
    plugin.does(Event::RunPodSandbox, Behavior::Hang);
    s.pod("p").await?;
    let closed = plugin.is_closed(PATIENCE).await;
    that(
        closed,
        "the plugin that was late is closed",
        "it is connected",
    )?;
    let reason = plugin.was_shut_down();
    that(
        reason.as_ref().is_some_and(|reason| !reason.is_empty()),
        "Shutdown with a reason",
        format!("{reason:?}"),
    )
}

async fn rollout(s: &Stage) -> Checked {
    let older = s.plugin("10", "rollout").await?;
    s.pod("before").await?;
    older.sees(Event::RunPodSandbox, "before").await?;
    let newer = s.plugin("10", "rollout").await?;
    let (pods, _) = newer.synchronised().await?;
    let listed = pods.iter().filter(|p| p.name == s.name("before")).count();
    same(
        "pods of this point in the newer one's Synchronize",
        1,
        listed,
    )?;
    // Both plugins write their events under one name.
    older.does(
        Event::RunPodSandbox,
        Behavior::Error("the older one was called".into()),
    );
    s.pod("meanwhile").await?;
    let reported = newer.count(Event::RunPodSandbox, "meanwhile");
    same("calls of the two meanwhile", 1, reported)?;
    let open = !older.is_closed(Duration::ZERO).await;
    that(open, "the older one stays connected", "it is closed")?;
    older.behaves();
    drop(newer);
    // The runtime frees the plugin's place after it notices the end; until then a pod may run
    // without either plugin.
    let mut number = 0;
    eventually("the older one is called again", || {
        number += 1;
        let (older, name) = (&older, format!("after{number}"));
        async move {
            let pod = s.pod(&name).await;
            pod.map_err(|_| format!("{name} does not run"))?;
            match older.count(Event::RunPodSandbox, &name) {
                1 => Ok(()),
                _ => Err(format!("{name} is not told to it")),
            }
        }
    })
    .await
}

async fn replacement(s: &Stage) -> Checked {
    let older = beta(s).await?;
    s.pod("p").await?;
    older.sees(Event::RunPodSandbox, "p").await?;
    let newer = beta(s).await?;
    let closed = older.is_closed(PATIENCE).await;
    that(closed, "the older instance is closed", "it is connected")?;
    let (pods, _) = newer.synchronised().await?;
    same(
        "pods of this point in the newer one's Synchronize",
        1,
        pods.iter().filter(|p| p.name == s.name("p")).count(),
    )?;
    let before = older.lines().len() + newer.lines().len();
    s.pod("next").await?;
    // Both plugins have the same name: exactly one of them got the event of the new pod.
    newer.sees(Event::RunPodSandbox, "next").await?;
    same(
        "events of the next pod",
        before / 2 + 1,
        s.journal.all().len(),
    )
}
