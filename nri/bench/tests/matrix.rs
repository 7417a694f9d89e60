//! Each kind of step with each kind of expectation: an unmet one is detected, or the scenario is
//! rejected with the line before anything is started.

mod common;

use std::{collections::BTreeMap, fmt::Write as _, sync::Mutex, thread};

use common::{Bench, Run, broken};

/// A runtime with a pod, and a plugin that changes all it can at every event.
const BEFORE: &str = r#"
runtime.join_timeout = "5s"
[pod.there]
containers = ["old"]
"#;

/// Each `do`, with its keys, and the steps that must come before it.
const STEPS: [(&str, &str, &[&str]); 15] = [
    ("join", "pods = [\"there\"]", &[]),
    ("run-pod", "", &[]),
    ("update-pod", "", &["run-pod"]),
    ("create", "container = \"c\"", &["run-pod"]),
    ("start", "container = \"c\"", &["create"]),
    (
        "update",
        "container = \"c\"\nresources.cpu.shares = 7",
        &["create"],
    ),
    ("stop", "container = \"c\"", &["create"]),
    ("remove", "container = \"c\"", &["create"]),
    ("stop-pod", "", &["create"]),
    ("remove-pod", "", &["create"]),
    ("crash", "", &[]),
    ("restart", "", &[]),
    ("rollout", "", &[]),
    ("slow", "by = \"1ms\"", &[]),
    ("churn", "times = 2", &[]),
];

/// Each key of `expect`, with a value that is not met at any step.
const EXPECTATIONS: [(&str, &str); 13] = [
    ("error", "\"never\""),
    ("adjust", "{ env = [{ key = \"NEVER\" }] }"),
    ("exact", "true"),
    ("unchanged", "true"),
    ("resources", "{ memory.limit = 7 }"),
    (
        "updates",
        "[{ container_id = \"old\", linux.resources.pids.limit = 7 }]",
    ),
    ("evictions", "[{ container_id = \"old\" }]"),
    ("events", "\"RunPodSandbox\""),
    ("prints", "[\"never\"]"),
    ("within", "\"1us\""),
    ("late", "true"),
    ("lost", "true"),
    ("exit", "3"),
];

fn step(name: &str) -> String {
    let (_, keys, before) = STEPS.iter().find(|s| s.0 == name).expect("a step");
    let before: String = before.iter().map(|name| step(name)).collect();
    format!("{before}[[step]]\ndo = \"{name}\"\n{keys}\n")
}

/// Returns the scenario, and the line of its expectation.
fn scenario(name: &str, expect: &str) -> (String, usize) {
    let join = match name {
        "join" => String::new(),
        _ => step("join"),
    };
    let before = format!("{BEFORE}{join}{}", step(name));
    let line = before.lines().count() + 1;
    (format!("{before}{expect}\n"), line)
}

fn run(name: &str, expect: &str) -> (Run, String) {
    let (scenario, line) = scenario(name, expect);
    let run = Bench::new().run(&scenario, &[], &broken("restless"));
    (run, format!("scenario.toml:{line}: "))
}

/// Returns the result of each cell. Some run concurrently, because most of them wait.
fn each<T: Send>(
    cells: Vec<(&'static str, &'static str, &'static str)>,
    look: impl Fn(&str, &str, &str) -> T + Sync,
) -> BTreeMap<(&'static str, &'static str), T> {
    let cells = Mutex::new(cells);
    let done = Mutex::new(BTreeMap::new());
    thread::scope(|threads| {
        for _ in 0..16 {
            threads.spawn(|| {
                while let Some((name, key, wrong)) = { cells.lock().expect("no panic").pop() } {
                    let came = look(name, key, wrong);
                    done.lock().expect("no panic").insert((name, key), came);
                }
            });
        }
    });
    done.into_inner().expect("no panic")
}

#[test]
fn a_wrong_expectation_fails_its_step_or_is_refused_with_its_line() {
    // A step without an expectation passes, so that only the expectation can fail.
    let right = STEPS.map(|(name, ..)| (name, "", ""));
    for ((name, _), (code, text)) in each(right.to_vec(), |name, _, _| {
        let (run, _) = run(name, "");
        (run.code, run.text)
    }) {
        assert_eq!(code, 0, "{name}: {text}");
    }
    let cells = STEPS.iter().flat_map(|(name, ..)| {
        EXPECTATIONS
            .iter()
            .map(|(key, wrong)| (*name, *key, *wrong))
    });
    let came = each(cells.collect(), |name, key, wrong| {
        let more = match key {
            "exact" => "expect.adjust = {}\n",
            _ => "",
        };
        let (run, place) = run(name, &format!("{more}expect.{key} = {wrong}"));
        match run.code {
            2 if run.errors.contains(&place) && run.text.is_empty() => Ok("refused"),
            1 if failed_step(&run).starts_with(name) => Ok("failed"),
            _ => Err(format!("{place}{} {} {}", run.code, run.text, run.errors)),
        }
    });
    let mut wrong = String::new();
    for ((name, key), came) in &came {
        if let Err(came) = came {
            let _ = writeln!(wrong, "{name} {key}: {came}");
        }
    }
    let count = came.values().filter(|came| came.is_err()).count();
    assert_eq!(count, 0, "of {}:\n{wrong}", came.len());
    // Suitable expectations are not rejected.
    let is = |name, key| came[&(name, key)].as_deref();
    for (name, key) in [
        ("create", "adjust"),
        ("create", "exact"),
        ("update", "unchanged"),
        ("update", "resources"),
        ("join", "updates"),
        ("crash", "updates"),
        ("restart", "updates"),
        ("rollout", "updates"),
        ("remove", "updates"),
        ("rollout", "events"),
        ("start", "exit"),
        ("churn", "unchanged"),
    ] {
        assert_eq!(is(name, key), Ok("failed"), "{name} {key}");
    }
}

/// The title of the only step that failed.
fn failed_step(run: &Run) -> String {
    let steps = run.json[0]["steps"].as_array().into_iter().flatten();
    let failed = steps.filter(|step| {
        ["failures", "findings"]
            .iter()
            .any(|key| step[key].as_array().is_some_and(|all| !all.is_empty()))
    });
    let failed: Vec<_> = failed.filter_map(|step| step["title"].as_str()).collect();
    failed.join(" and ")
}
