//! G-32 and G-33: plugins that choose the effect of their failures themselves.

use nri::proto::{Event, FailurePolicy};

use super::failures::{Class, EVENTS, SILENT, before, of, pair};
use crate::{
    point::{Cost, Point, points},
    stage::{PATIENCE, Stage},
};
use testkit::{
    plugin::Behavior,
    verdict::{Answer, Checked, same, skip, that},
};

pub(super) fn points() -> Vec<Point> {
    let mut points = points! {
        Fast "G-32/an-absent-one-fails-nothing" "a plugin with fail_request that has ended fails no request" absent;
        Slow "G-33/kept" "a plugin with keep_connected that is late stays, and gets the next event" kept;
        Slow "G-33/kept-and-fails-the-request" "with both, a timeout fails the call and the plugin stays" kept_and_fails;
        Fast "G-33/a-lost-one-is-not-kept" "keep_connected does not hold what is lost" lost;
    };
    for (event, class, _) in EVENTS {
        for (how, behavior) in SILENT {
            let name = nri::mask::event_name(event);
            let id = format!("G-32/{how}-at-{name}");
            let title = match class {
                Class::Setup => format!("with fail_request, {how} at {name} fails the call"),
                Class::Teardown => {
                    format!("with fail_request, {how} at {name} fails the call when all is done")
                }
                Class::Notification => format!("with fail_request, {how} at {name} fails nothing"),
            };
            let cost = if how == "timeout" {
                Cost::Slow
            } else {
                Cost::Fast
            };
            points.push(Point::new(id, title, cost, move |stage| {
                let behavior = behavior.clone();
                async move { failing(&stage, event, class, behavior).await }
            }));
        }
    }
    points
}

/// The first NRI version in which plugins send a failure policy.
const SINCE: [u64; 3] = [0, 12, 5];

/// Skips the point if the runtime's NRI is older.
fn known(s: &Stage) -> Checked {
    let reported = s.run.nri_version.trim_start_matches('v');
    let numbers: Vec<u64> = reported.split('.').filter_map(|n| n.parse().ok()).collect();
    if numbers.len() == SINCE.len() && numbers.as_slice() < SINCE.as_slice() {
        return skip(format!(
            "failure_policy of plugins: it came with NRI v0.12.5, the runtime has v{reported}"
        ));
    }
    Ok(())
}

const FAIL: FailurePolicy = FailurePolicy {
    fail_request: true,
    keep_connected: false,
};

async fn failing(s: &Stage, event: Event, class: Class, behavior: Behavior) -> Checked {
    known(s)?;
    let (hostile, good) = pair(s, Some(FAIL)).await?;
    let stand = before(s, event).await?;
    hostile.does(event, behavior);
    let answer = stand.call(s, event).await?;
    let call = format!("the call of {event:?}");
    match class {
        Class::Setup => {
            answer.fails(&call)?;
            same(
                "the event at the plugin behind it",
                0,
                good.count(event, of(event)),
            )
        }
        // CRI cannot report an error for a container's stop: the container has ended.
        Class::Teardown if event == Event::StopContainer => {
            good.sees(event, of(event)).await.map(drop)
        }
        Class::Teardown => {
            answer.fails(&call)?;
            good.sees(event, of(event)).await.map(drop)
        }
        Class::Notification => {
            answer.succeeds(&call)?;
            good.sees(event, of(event)).await.map(drop)
        }
    }
}

async fn absent(s: &Stage) -> Checked {
    known(s)?;
    let (hostile, good) = pair(s, Some(FAIL)).await?;
    drop(hostile);
    // An event at the good plugin shows that the runtime no longer waits for the other one.
    let pod = s.pod("p").await?;
    good.sees(Event::RunPodSandbox, "p").await?;
    pod.ends().await
}

/// A plugin with `keep_connected` that times out at C-01 of a pod.
async fn kept(s: &Stage) -> Checked {
    known(s)?;
    let hostile = s.wanted("10", "hostile").policy(false, true).join().await?;
    hostile.does(Event::RunPodSandbox, Behavior::Hang);
    let pod = s.pod("p").await?;
    hostile.behaves();
    pod.created("c").await?;
    hostile.sees(Event::CreateContainer, "p/c").await.map(drop)
}

async fn kept_and_fails(s: &Stage) -> Checked {
    known(s)?;
    let hostile = s.wanted("10", "hostile").policy(true, true).join().await?;
    hostile.does(Event::RunPodSandbox, Behavior::Hang);
    let ran = s.cri().run(s.pod_config("p")).await;
    ran.fails("RunPodSandbox")?;
    hostile.behaves();
    s.pod("next").await?;
    hostile.sees(Event::RunPodSandbox, "next").await.map(drop)
}

async fn lost(s: &Stage) -> Checked {
    known(s)?;
    let hostile = s.wanted("10", "hostile").policy(false, true).join().await?;
    hostile.does(Event::RunPodSandbox, Behavior::Die);
    s.pod("p").await?;
    let closed = hostile.is_closed(PATIENCE).await;
    that(closed, "the plugin is gone", "it is connected")
}
