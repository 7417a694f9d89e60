//! Replays to plugins: equal answers, different ones and their differences, and recordings that
//! cannot be replayed.

mod common;
#[path = "common/proxy.rs"]
mod proxy;

use std::{ffi::OsString, fs, path::Path};

use common::{Bench, Run, broken};
use proxy::recorded;
use serde_json::Value;

fn replay(bench: &Bench, file: &Path, rule: &str) -> Run {
    bench.answer(vec!["replay".into(), file.into()], &broken(rule))
}

/// Returns the outcome of each event.
fn outcomes(run: &Run) -> Vec<(&str, &str)> {
    let steps = run.json[0]["steps"].as_array().expect("steps").iter();
    let text = |value: &'_ Value| -> &'static str {
        Box::leak(
            value
                .as_str()
                .unwrap_or_default()
                .to_owned()
                .into_boxed_str(),
        )
    };
    steps
        .map(|step| (text(&step["title"]), text(&step["outcome"])))
        .collect()
}

fn outcome<'a>(run: &'a Run, title: &str) -> &'a str {
    let all = outcomes(run);
    let found = all.iter().find(|(t, _)| t.starts_with(title));
    found
        .unwrap_or_else(|| panic!("{title} is not in {all:?}"))
        .1
}

#[test]
fn the_plugin_that_was_recorded_answers_as_it_did() {
    for flags in [&[][..], &["--with-env"][..]] {
        let bench = Bench::new();
        let file = recorded(&bench, "none", flags);
        let run = replay(&bench, &file, "none");
        assert_eq!(run.code, 0, "{}", run.text);
        let all = outcomes(&run);
        assert_eq!(
            all.iter().map(|(title, _)| *title).collect::<Vec<_>>(),
            [
                "RegisterPlugin 10-broken",
                "Configure",
                "Synchronize",
                "RunPodSandbox web",
                "CreateContainer web/greeter",
                "StartContainer web/greeter",
                "StopContainer web/greeter",
                "StopPodSandbox web",
                "RemoveContainer web/greeter",
                "RemovePodSandbox web",
                "Shutdown",
            ]
        );
        assert!(all.iter().all(|(_, outcome)| *outcome == "same"), "{all:?}");
        assert_eq!(
            run.text.contains("are redacted"),
            flags.is_empty(),
            "{}",
            run.text
        );
        assert!(
            run.text.contains("same: 11 steps, as recorded"),
            "{}",
            run.text
        );
    }
}

#[test]
fn what_a_changed_plugin_answers_otherwise_is_named_field_by_field() {
    let bench = Bench::new();
    let file = recorded(&bench, "none", &["--with-env"]);
    let junit = bench.path("out.xml");
    let args = vec![
        "replay".into(),
        file.into(),
        "--junit".into(),
        junit.clone().into(),
    ];
    let run = bench.answer(args, &broken("adjusts-otherwise"));
    assert_eq!(run.code, 1, "{}", run.text);
    assert_eq!(outcome(&run, "CreateContainer"), "different");
    let lines = [
        "+ adjust.annotations[\"new\"]: 1",
        "~ adjust.env[\"GOOD\"]: 1 -> 2",
        "different: 1 of 11 steps",
    ];
    for line in lines {
        assert!(run.text.contains(line), "{line} is not in {}", run.text);
    }
    let step = &run.json[0]["steps"][4];
    assert_eq!(step["differences"][1]["path"], "adjust.env[\"GOOD\"]");
    assert_eq!(
        (
            &step["differences"][1]["recorded"],
            &step["differences"][1]["now"]
        ),
        (&"1".into(), &"2".into())
    );
    let xml = fs::read_to_string(junit).expect("a report");
    assert!(
        xml.contains("message=\"adjust.env[&quot;GOOD&quot;]: recorded 1, now 2\""),
        "{xml}"
    );
}

#[test]
fn redacted_values_are_equal_and_a_name_that_changes_is_not() {
    let bench = Bench::new();
    let file = recorded(&bench, "none", &[]);
    let run = replay(&bench, &file, "adjusts-otherwise");
    assert!(!run.text.contains("env[GOOD]"), "{}", run.text);
    let run = replay(&bench, &file, "conflict");
    assert!(
        run.text.contains("- adjust.env[\"GOOD\"]: <redacted>"),
        "{}",
        run.text
    );
    assert!(
        run.text.contains("+ adjust.env[\"OTHER\"]: <redacted>"),
        "{}",
        run.text
    );
}

#[test]
fn errors_time_outs_and_a_lost_connection_are_told_apart_and_break_their_rules() {
    let bench = Bench::new();
    let file = recorded(&bench, "none", &[]);
    for (rule, title, became, rules) in [
        ("refuses", "CreateContainer", "error", &[][..]),
        (
            "teardown-refused",
            "RemoveContainer",
            "error",
            &["teardown-refused"],
        ),
        (
            "unhandled-event",
            "StartContainer",
            "error",
            &["unhandled-event"],
        ),
        (
            "late-answer",
            "StartContainer",
            "timed out",
            &["late-answer"],
        ),
        (
            "lost-connection",
            "StartContainer",
            "lost",
            &["lost-connection"],
        ),
        ("garbage", "CreateContainer", "error", &["garbage"]),
        (
            "bad-adjustment",
            "CreateContainer",
            "different",
            &["bad-adjustment"],
        ),
        (
            "unknown-container",
            "CreateContainer",
            "different",
            &["unknown-container"],
        ),
    ] {
        let run = replay(&bench, &file, rule);
        assert_eq!(run.code, 1, "{rule}: {}", run.text);
        assert_eq!(outcome(&run, title), became, "{rule}: {}", run.text);
        assert_eq!(run.rules(), rules, "{rule}: {}", run.text);
    }
}

#[test]
fn other_subscriptions_are_a_difference_and_what_was_answered_to_them_then_is_missing() {
    let bench = Bench::new();
    let file = recorded(&bench, "none", &[]);
    let run = replay(&bench, &file, "subscribes-to-less");
    assert_eq!(run.code, 1, "{}", run.text);
    assert_eq!(outcome(&run, "Configure"), "different");
    assert_eq!(outcome(&run, "CreateContainer"), "not subscribed");
    let line = "-> RunPodSandbox,StopPodSandbox,RemovePodSandbox";
    assert!(run.text.contains(line), "{}", run.text);
    assert!(
        run.text.contains("- adjust.env[\"GOOD\"]: <redacted>"),
        "{}",
        run.text
    );
    let titles: Vec<_> = outcomes(&run).into_iter().map(|(title, _)| title).collect();
    assert!(
        !titles.contains(&"StartContainer web/greeter"),
        "nothing is missing there: {titles:?}"
    );
}

#[test]
fn what_the_plugin_asks_for_by_itself_is_compared_with_what_it_asked_for_then() {
    let bench = Bench::new();
    let asks = recorded(&bench, "update-beside-callback", &[]);
    let run = replay(&bench, &asks, "update-beside-callback");
    assert_eq!(run.code, 0, "{}", run.text);
    assert_eq!(outcome(&run, "UpdateContainers of the plugin"), "same");
    let run = replay(&bench, &asks, "none");
    assert_eq!(run.code, 1, "{}", run.text);
    assert!(
        run.text.contains("it did not ask for this now"),
        "{}",
        run.text
    );
    assert!(run.text.contains(".pids.limit: 10"), "{}", run.text);
    let bench = Bench::new();
    let silent = recorded(&bench, "none", &[]);
    let run = replay(&bench, &silent, "update-beside-callback");
    assert_eq!(run.code, 1, "{}", run.text);
    assert!(
        run.text.contains("it did not ask for this then"),
        "{}",
        run.text
    );
}

#[test]
fn plugins_of_both_generations_are_played_the_same_events() {
    let generations = ["none", "state-change"];
    for then in generations {
        let bench = Bench::new();
        let file = recorded(&bench, then, &[]);
        for now in generations {
            let run = replay(&bench, &file, now);
            assert_eq!(run.code, 0, "{now} by {then}: {}", run.text);
            assert_eq!(outcomes(&run).len(), 11, "{now} by {then}: {}", run.text);
        }
    }
}

#[test]
fn a_recording_becomes_a_scenario_that_the_recorded_plugin_holds_and_another_does_not() {
    for recorded_as in ["none", "adjusts-otherwise", "subscribes-to-less"] {
        let bench = Bench::new();
        let file = recorded(&bench, recorded_as, &[]);
        let mut out = Vec::new();
        let args = ["nri-bench".into(), "init".into(), OsString::from(file)];
        assert_eq!(
            nri_bench::cli::answer_to(args, &mut out, &mut std::io::stderr()),
            0
        );
        let scenario = String::from_utf8(out).expect("text");
        let run = bench.run(&scenario, &[], &broken(recorded_as));
        assert_eq!(run.code, 0, "{scenario}\n{}", run.text);
        let run = bench.run(&scenario, &[], &broken("conflict"));
        assert_eq!(run.code, 1, "{scenario}\n{}", run.text);
    }
}

#[test]
fn a_plugin_may_connect_by_itself() {
    let bench = Bench::new();
    let file = recorded(&bench, "none", &[]);
    let mut plugin = broken("none");
    plugin.extend(["-socket-path", "{socket}"].map(OsString::from));
    let args = vec!["replay".into(), file.into(), "--connect".into()];
    let run = bench.answer(args, &plugin);
    assert_eq!(run.code, 0, "{}", run.text);
}

#[test]
fn what_cannot_be_played_is_said_before_anything_is_started() {
    let bench = Bench::new();
    let file = bench.path("r.jsonl");
    let header = "{\"nri-recording\":1,\"recorder\":\"r\",\"began\":\"\",\"env\":\"kept\"}\n";
    for text in ["", "kind: Pod\n", "{\"nri-recording\":2}\n", header] {
        fs::write(&file, text).expect("a file");
        let run = bench.answer(
            vec!["replay".into(), file.clone().into()],
            &["no-such-program".into()],
        );
        assert_eq!((run.code, run.text.as_str()), (2, ""), "{text}");
    }
}

#[test]
fn a_plugin_that_does_not_join_was_not_tried() {
    let bench = Bench::new();
    let file = recorded(&bench, "none", &[]);
    let run = bench.answer(vec!["replay".into(), file.into()], &["false".into()]);
    assert_eq!(run.code, 2, "{}", run.text);
    assert!(
        run.text.contains("before it had registered"),
        "{}",
        run.text
    );
}
