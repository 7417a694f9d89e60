//! G-10, G-39 and G-41: the accepted plugins and their protocols.

use std::time::{Duration, Instant};

use nri::proto::Event;
use testkit::raw::Raw;

use crate::{
    point::{Point, points},
    raw,
    stage::{Stage, eventually},
};
use testkit::{
    journal::listed,
    plugin::Behavior,
    verdict::{Answer, Checked, miss, same, that},
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
