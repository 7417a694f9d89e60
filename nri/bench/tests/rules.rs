//! Each rule, broken by the plugin in examples/broken.rs with its name; and no broken rule without
//! one.

mod common;

use common::{Bench, broken};

/// The steps that break each rule, after the join, and the other parts of the scenario.
const LIVES: &[(&str, &str)] = &[
    ("update-in-callback", START),
    ("unknown-container", START),
    ("kept-after-remove", TWICE),
    ("conflict", BESIDE_ANOTHER),
    ("bad-answer", START),
    ("bad-adjustment", START),
    ("growth", CHURN),
    ("late-answer", START),
    ("lost-connection", START),
    ("garbage", START),
    ("answer-after-shutdown", START),
    ("unhandled-event", START),
    ("subscribes-to-all", START),
    ("teardown-refused", TWICE),
    ("outlives-runtime", CRASH),
];
const START: &str = r#"
runtime.request_timeout = "3s"
[[step]]
do = "create"
container = "c"
[[step]]
do = "start"
container = "c"
"#;
const TWICE: &str = r#"
[[step]]
do = "create"
container = "c"
[[step]]
do = "remove"
container = "c"
[[step]]
do = "create"
container = "c"
"#;
const BESIDE_ANOTHER: &str = r#"
[[other]]
id = "05-other"
adjust.env = [{ key = "OTHER", value = "1" }]
[[step]]
do = "create"
container = "c"
expect.error = "nothing of the kind"
"#;
const CHURN: &str = r#"
growth = "8MiB"
[[step]]
do = "churn"
times = 200
"#;
const CRASH: &str = r#"
[[step]]
do = "run-pod"
[[step]]
do = "crash"
"#;

/// A plugin without a stub can only connect.
fn flags(rule: &str) -> &'static [&'static str] {
    match rule {
        "subscribes-to-all" | "answer-after-shutdown" => &["--connect"],
        _ => &[],
    }
}

#[test]
fn every_rule_is_named_when_it_is_broken_and_no_other() {
    let bench = Bench::new();
    let rules: Vec<_> = nri_bench::rules::ALL.iter().map(|r| r.name).collect();
    let tried: Vec<_> = LIVES.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(tried, rules);
    for (rule, scenario) in LIVES {
        let mut plugin = broken(rule);
        if !flags(rule).is_empty() {
            plugin.extend(["-socket-path".into(), "{socket}".into()]);
        }
        let run = bench.run(scenario, flags(rule), &plugin);
        assert_eq!(run.rules(), [*rule], "{}", run.text);
        assert_eq!(run.code, 1, "{}", run.text);
        let remedy = nri_bench::rules::Rule::named(rule).map(|r| r.about().remedy);
        assert!(run.text.contains(remedy.unwrap_or(rule)), "{}", run.text);
    }
}

#[test]
fn a_plugin_that_breaks_none_is_told_of_none() {
    let bench = Bench::new();
    for scenario in [START, TWICE, CHURN, CRASH] {
        let run = bench.run(scenario, &[], &broken("none"));
        assert_eq!((run.code, run.rules()), (0, Vec::new()), "{}", run.text);
    }
}

#[test]
fn a_variable_without_a_name_is_found_though_a_runtime_drops_it() {
    let run = Bench::new().run(START, &[], &broken("nameless"));
    assert_eq!(run.rules(), ["bad-adjustment"], "{}", run.text);
    assert!(run.text.contains("variable \"\": no name"), "{}", run.text);
}

#[test]
fn an_update_that_no_handler_waits_for_is_let_through() {
    let run = Bench::new().run(START, &[], &broken("update-beside-callback"));
    assert_eq!((run.code, run.rules()), (0, Vec::new()), "{}", run.text);
}

#[test]
fn an_answer_that_counts_the_removed_is_found_by_a_churn() {
    let run = Bench::new().run(CHURN, &[], &broken("counts-the-removed"));
    assert_eq!(run.rules(), ["kept-after-remove"], "{}", run.text);
}

#[test]
fn an_update_of_the_stopped_is_found() {
    let stop = format!("{START}[[step]]\ndo = \"stop\"\ncontainer = \"c\"\n");
    let run = Bench::new().run(&stop, &[], &broken("updates-the-stopped"));
    assert_eq!(run.rules(), ["kept-after-remove"], "{}", run.text);
    assert!(
        run.text
            .contains("an update of container c, which has stopped"),
        "{}",
        run.text
    );
}

#[test]
fn a_rule_that_the_scenario_allows_is_shown_and_fails_nothing() {
    let scenario = format!("allow = [\"bad-adjustment\"]\n{START}");
    let run = Bench::new().run(&scenario, &[], &broken("bad-adjustment"));
    assert_eq!((run.code, run.rules()), (0, Vec::new()), "{}", run.text);
    assert!(run.text.contains("allowed bad-adjustment"), "{}", run.text);
}
