//! A plugin's own `failure_policy`: each of Go's forms × each failure × some events, on our runtime
//! side and on Go's, with the same Go plugin. Also its combination with the operator's settings.
//!
//! Requires Go on the PATH, as `interop.rs` does.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod common;

use std::{collections::BTreeMap, time::Duration};

use common::{
    Place, Record, container,
    go::{Program, go_plugin, go_runtime},
    pod, until_active,
};
use nri::{
    Adaptation, Handlers, PluginSettings,
    policy::OnTimeout,
    proto::{Event, FailurePolicy},
    stub::Stub,
};

/// The plugins' timeout. It is short for a hanging plugin, which uses it up a hundred times.
fn limit(attack: &str) -> Duration {
    let seconds = if attack == "hang" { 2 } else { 10 };
    Duration::from_secs(seconds) * common::patience()
}

/// The values of Go's stub: no policy, and all four forms of its `FailurePolicy`.
const POLICIES: [&str; 5] = ["none", "-", "f", "k", "fk"];
const MISDEEDS: [&str; 4] = ["error", "hang", "exit", "garbage"];

/// The result of one failure.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Came {
    /// The request's error; empty on success.
    error: String,
    /// The later plugin got the event.
    later_reported: bool,
    /// The failed plugin got the next event.
    kept: bool,
}

/// A runtime of either kind.
enum Side {
    Ours(Adaptation),
    Go(Program),
}

impl Side {
    /// Sends one event; returns its error. An error of a teardown or a notification is in its
    /// result.
    async fn send(&mut self, event: &str, id: &str) -> String {
        match self {
            Self::Go(go) => {
                let line = format!("event {event} {id}");
                go.report(&line);
                let answer = go.says(&format!("{line} ")).await;
                let error = answer[line.len()..].trim();
                if error == "<nil>" { "" } else { error }.to_owned()
            }
            Self::Ours(nri) => {
                let c = container("c", id);
                let sent = match event {
                    "RunPodSandbox" => nri.run_pod_sandbox(pod(id)).await.map(|_| None),
                    "StopPodSandbox" => Ok(nri.stop_pod_sandbox(pod(id)).await.failed),
                    "PostCreateContainer" => Ok(nri.post_create_container(pod(id), c).await.failed),
                    _ => {
                        let turn = nri.turn(Event::CreateContainer).await;
                        nri.create_container(&turn, pod(id), c).await.map(|_| None)
                    }
                };
                let failed = sent.unwrap_or_else(|refused| Some(refused.to_string()));
                failed.unwrap_or_default()
            }
        }
    }
}

/// Makes `10-failing` fail the event in this way, with a plugin after it, on one of the two sides.
async fn run(ours: bool, event: &str, policy: &str, attack: &str) -> Option<Came> {
    let place = Place::new();
    let mut side = if ours {
        Side::Ours(
            place
                .builder()
                .request_timeout(limit(attack))
                .start()
                .await
                .unwrap(),
        )
    } else {
        let limit = format!("{}ms", limit(attack).as_millis());
        let go = go_runtime(&place, &["-timeout", &limit])?;
        go.says("ready").await;
        Side::Go(go)
    };
    let more = ["-event", event, "-policy", policy, "-misdeed", attack];
    let failing = go_plugin("failing", &place, "10", &more)?;
    let record = Record::default();
    if let Side::Go(go) = &side {
        go.says_times("synchronized <nil>", 2).await;
    }
    let later = Stub::builder(record.handlers())
        .name("later")
        .index("20")
        .socket(place.socket());
    let mut later = later;
    let _later = later.start().await.unwrap();
    match &side {
        Side::Go(go) => drop(go.says_times("synchronized <nil>", 3).await),
        Side::Ours(nri) => {
            until_active(nri, "10-go").await;
            until_active(nri, "20-later").await;
        }
    }
    let error = side.send(event, "bad").await;
    let reported = |id: &str| {
        let line = format!("{event} {id}");
        record.lines().iter().any(|l| l.starts_with(&line))
    };
    let later_reported = reported("bad");
    assert_eq!(side.send(event, "good").await, "", "what follows goes well");
    let good = format!("{event} good");
    if event != "ValidateContainerAdjustment" {
        assert!(reported("good"), "the plugin after it gets the next event");
    }
    // If the plugin was kept, its line may arrive late; otherwise no line arrives.
    let kept = matches!(attack, "error") || (attack == "hang" && policy.contains('k'));
    if kept {
        failing.says(&good).await;
    }
    let kept = failing.lines().contains(&good);
    Some(Came {
        error,
        later_reported,
        kept,
    })
}

/// Runs each policy × each misdeed at one event, on both sides. Returns the cell's name, the result
/// on Go's side, and on ours. Empty if Go is skipped.
async fn cells(event: &'static str) -> Vec<(&'static str, &'static str, Came, Came)> {
    let mut cells = Vec::new();
    for policy in POLICIES {
        let runs = MISDEEDS.map(|attack| {
            tokio::spawn(async move {
                let go = run(false, event, policy, attack).await?;
                let ours = run(true, event, policy, attack).await?;
                Some((policy, attack, go, ours))
            })
        });
        for run in runs {
            cells.extend(run.await.unwrap());
        }
    }
    cells
}

/// Returns the expected result at a setup event.
fn expected(policy: &str, attack: &str) -> (bool, bool, bool) {
    let own = attack == "error";
    let fails = own || policy.contains('f');
    let kept = own || (attack == "hang" && policy.contains('k'));
    (fails, !fails, kept)
}

#[tokio::test(flavor = "multi_thread")]
async fn at_setup_each_failure_comes_to_the_same_here_and_on_the_go_runtime() {
    for event in ["RunPodSandbox", "CreateContainer"] {
        for (policy, attack, go, ours) in cells(event).await {
            let cell = format!("{event} {policy:?} {attack}");
            for (side, came) in [("Go", &go), ("ours", &ours)] {
                let seen = (!came.error.is_empty(), came.later_reported, came.kept);
                assert_eq!(seen, expected(policy, attack), "{cell} on {side}: {came:?}");
                let names = format!("plugin 10-go failed to handle {event} request: ");
                match attack {
                    "error" => assert!(came.error.contains("no room"), "{cell}: {came:?}"),
                    _ if came.error.is_empty() => {}
                    _ => assert!(came.error.starts_with(&names), "{cell}: {came:?}"),
                }
            }
            common::held(&format!("failure policy: {cell}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_validator_that_fails_rejects_and_is_kept_or_dropped_as_on_the_go_runtime() {
    let event = "ValidateContainerAdjustment";
    for (policy, attack, go, ours) in cells(event).await {
        let cell = format!("{policy:?} {attack}");
        for (side, came) in [("Go", &go), ("ours", &ours)] {
            let (_, _, kept) = expected(policy, attack);
            assert!(came.error.contains("10-go"), "{cell} on {side}: {came:?}");
            assert_eq!(came.kept, kept, "{cell} on {side}: {came:?}");
        }
    }
}

/// An intended difference from Go: every plugin gets a teardown or a notification, even if another
/// one failed it, and a plugin's own error there is only logged.
#[tokio::test(flavor = "multi_thread")]
async fn at_teardown_a_failure_is_the_result_in_the_end_and_everyone_is_told() {
    for event in ["StopPodSandbox", "PostCreateContainer"] {
        for (policy, attack, go, ours) in cells(event).await {
            let cell = format!("{event} {policy:?} {attack}");
            let (fails, _, kept) = expected(policy, attack);
            assert_eq!(!go.error.is_empty(), fails, "{cell} on Go: {go:?}");
            assert_eq!(
                !ours.error.is_empty(),
                fails && attack != "error",
                "{cell}: {ours:?}"
            );
            assert!(ours.later_reported, "{cell}: {ours:?}");
            assert_eq!((go.kept, ours.kept), (kept, kept), "{cell}");
        }
    }
}

fn policy(fail_request: bool, keep_connected: bool) -> FailurePolicy {
    FailurePolicy {
        fail_request,
        keep_connected,
    }
}

/// Our plugin that hangs at the pod "bad".
fn hangs(policy: FailurePolicy) -> Handlers {
    Handlers::new()
        .failure_policy(policy)
        .run_pod_sandbox(|pod| async move {
            if pod.id == "bad" {
                std::future::pending::<()>().await;
            }
            Ok(())
        })
}

async fn connect(place: &Place, handlers: Handlers) -> Stub {
    let mut stub = Stub::builder(handlers)
        .name("go")
        .index("10")
        .socket(place.socket());
    stub.start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn our_stub_tells_the_go_runtime_its_policy() {
    for policy in [
        policy(false, false),
        policy(true, false),
        policy(false, true),
        policy(true, true),
    ] {
        let place = Place::new();
        let Some(go) = go_runtime(&place, &["-timeout", "1s"]) else {
            return;
        };
        go.says("ready").await;
        let mut side = Side::Go(go);
        let stub = connect(&place, hangs(policy)).await;
        let Side::Go(go) = &side else { unreachable!() };
        go.says_times("synchronized <nil>", 2).await;
        let error = side.send("RunPodSandbox", "bad").await;
        assert_eq!(
            error.contains("plugin 10-go failed to handle"),
            policy.fail_request,
            "{error}"
        );
        assert_eq!(side.send("RunPodSandbox", "good").await, "");
        // A kept plugin gets no notice; a closed one notices the end of its connection.
        let patience = Duration::from_millis(if policy.keep_connected { 500 } else { 20_000 });
        let ended = tokio::time::timeout(patience, stub.wait()).await;
        assert_eq!(ended.is_err(), policy.keep_connected, "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_setting_wins_over_the_plugins_wish_and_is_shown() {
    // The operator's setting, the plugin's policy, and the result: fails, kept.
    let says = |fail, late| (fail, late);
    for (operator, policy, fails, kept) in [
        (says(None, None), policy(true, true), true, true),
        (says(None, None), policy(false, false), false, false),
        (says(Some(false), None), policy(true, true), false, true),
        (says(Some(true), None), policy(false, false), true, false),
        (
            says(None, Some(OnTimeout::Close)),
            policy(true, true),
            true,
            false,
        ),
        (
            says(None, Some(OnTimeout::Keep)),
            policy(true, false),
            true,
            true,
        ),
    ] {
        let mut settings = PluginSettings::default();
        (settings.policy.fail_request, settings.policy.on_timeout) = operator;
        let settings = BTreeMap::from([("10-go".parse().unwrap(), settings)]);
        let place = Place::new();
        let nri = place.builder().plugins(settings).start().await.unwrap();
        let _stub = connect(&place, hangs(policy)).await;
        until_active(&nri, "10-go").await;
        let shown = &nri.plugins()[0];
        assert_eq!(shown.fail_request, fails, "{operator:?} {policy:?}");
        assert_eq!(
            shown.on_timeout == OnTimeout::Keep,
            kept,
            "{operator:?} {policy:?}"
        );
        let failed = nri.run_pod_sandbox(pod("bad")).await.is_err();
        let stays = !common::there(&nri).is_empty();
        assert_eq!((failed, stays), (fails, kept), "{operator:?} {policy:?}");
    }
}
