//! C-04.4: validators of the merged adjustment.

use nri::{
    adjust::Adjust,
    proto::{Event, Field},
};

use crate::{
    cri::SLEEPER,
    point::{Point, points},
    stage::{Stage, one_line_with},
};
use testkit::{
    plugin::{Behavior, Plugin},
    verdict::{Answer, Checked, miss, reported, same, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "C-04.4/gets-the-result-and-its-owners" "a validator gets the merged adjustment and the owner of each field" gets_the_result;
        Fast "C-04.4/a-rejection-fails" "a rejection fails the creation, with its reason, and nothing is left" a_rejection_fails;
        Fast "C-04.4/each-rejection-is-reported" "of two validators that reject, both reasons are reported" each_rejection;
        Fast "C-04.4/an-error-rejects" "a validator that answers with an error rejects" an_error_rejects;
        Fast "C-04.4/a-lost-one-rejects" "a validator that is lost before its verdict rejects" a_lost_one_rejects;
        Slow "C-04.4/a-late-one-rejects" "a validator that does not answer in time rejects" a_late_one_rejects;
        Fast "C-04.4/after-all-plugins" "validators are asked when every plugin has answered" after_all_plugins;
    }
}

const VALIDATION: &[Event] = &[Event::ValidateContainerAdjustment];

async fn validator(s: &Stage, index: &str, name: &str) -> Checked<Plugin> {
    s.wanted(index, name).events(VALIDATION).join().await
}

async fn gets_the_result(s: &Stage) -> Checked {
    let adjuster = s.plugin("20", "a").await?;
    let validator = validator(s, "10", "v").await?;
    adjuster.adjusts(|adjust| {
        adjust.add_env("SET", "by a").oom_score_adj(500);
    });
    let pod = s.pod("p").await?;
    pod.created("c").await?;
    let Some(asked) = validator.checked().pop() else {
        return miss("the validator is asked", "it is not");
    };
    let adjust = asked.adjust.unwrap_or_default();
    that(
        adjust.env.iter().any(|e| e.key == "SET"),
        "the merged adjustment has the variable SET",
        format!("{adjust:?}"),
    )?;
    let owners = asked.owners.unwrap_or_default().owners;
    let owners = owners.into_values().next().unwrap_or_default();
    let of_score = owners.simple.get(&(Field::OomScoreAdj as i32));
    let by = |owner: Option<&String>| owner.is_some_and(|o| adjuster.id().ends_with(o.as_str()));
    that(
        by(of_score),
        format!("the owner of oom_score_adj is {}", adjuster.id()),
        format!("{of_score:?}"),
    )?;
    let of_env = owners.compound.get(&(Field::Env as i32));
    let of_env = of_env.and_then(|of| of.owners.get("SET"));
    that(
        by(of_env),
        format!("the owner of the variable SET is {}", adjuster.id()),
        format!("{of_env:?}"),
    )
}

/// Checks that the creation fails with these words, and that the container is not listed.
async fn refused(s: &Stage, words: &[&str]) -> Checked {
    let pod = s.pod("p").await?;
    let error = pod.create("c", &SLEEPER).await.fails("CreateContainer")?;
    one_line_with(&error, words)?;
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    same("containers listed", 0, listed.len())
}

/// Connects a plugin that adjusts: validators are called only for adjustments.
async fn adjuster(s: &Stage) -> Checked<Plugin> {
    let plugin = s.plugin("20", "a").await?;
    plugin.adjusts(|adjust| {
        adjust.add_env("SET", "by a");
    });
    Ok(plugin)
}

async fn a_rejection_fails(s: &Stage) -> Checked {
    let _adjuster = adjuster(s).await?;
    let validator = validator(s, "10", "v").await?;
    validator.validates(|_| Err("against the house rules".into()));
    refused(s, &["against the house rules"]).await
}

async fn each_rejection(s: &Stage) -> Checked {
    let _adjuster = adjuster(s).await?;
    let (one, two) = (
        validator(s, "10", "v").await?,
        validator(s, "11", "w").await?,
    );
    one.validates(|_| Err("first reason".into()));
    two.validates(|_| Err("second reason".into()));
    let pod = s.pod("p").await?;
    let error = pod.create("c", &SLEEPER).await.fails("CreateContainer")?;
    let both = ["first reason", "second reason"];
    that(
        both.iter().all(|reason| error.message().contains(reason)),
        "the error has both reasons",
        reported(&error),
    )
}

async fn silent(s: &Stage, behavior: Behavior) -> Checked {
    let _adjuster = adjuster(s).await?;
    let validator = validator(s, "10", "v").await?;
    validator.does(Event::ValidateContainerAdjustment, behavior);
    refused(s, &[]).await
}

async fn an_error_rejects(s: &Stage) -> Checked {
    silent(s, Behavior::Error("cannot say".into())).await
}
async fn a_lost_one_rejects(s: &Stage) -> Checked {
    silent(s, Behavior::Die).await
}
async fn a_late_one_rejects(s: &Stage) -> Checked {
    silent(s, Behavior::Hang).await
}

async fn after_all_plugins(s: &Stage) -> Checked {
    let last = s.plugin("90", "z").await?;
    last.adjusts(|adjust| {
        adjust.add_env("SET", "by the last");
    });
    let validator = validator(s, "10", "v").await?;
    let pod = s.pod("p").await?;
    let call = async move { pod.create("c", &SLEEPER).await };
    let hook = s.hold(&last, Event::CreateContainer, "p/c", call).await?;
    tokio::time::sleep(super::run::QUIET).await;
    same(
        "validations before the last plugin has answered",
        0,
        validator.checked().len(),
    )?;
    hook.passes("CreateContainer").await?;
    same("validations", 1, validator.checked().len())
}
