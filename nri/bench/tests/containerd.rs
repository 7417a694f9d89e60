//! Replays a pod on containerd v2.4.2, recorded by `nri-bench record` (data/README.md), to plugins
//! in Go and in Rust.

mod common;
#[path = "common/programs.rs"]
mod programs;

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use common::{Bench, Run, broken};
use programs::{go_program, programs};

fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containerd-v2.4.2.jsonl")
}

fn replay(of: &str, plugin: PathBuf) -> Run {
    let args = [
        "replay".into(),
        recording().into(),
        "--plugin".into(),
        of.into(),
    ];
    Bench::new().answer(args.to_vec(), &[plugin.into()])
}

#[test]
fn the_sample_in_rust_answers_containerd_as_the_one_in_go_did() {
    let run = replay("ulimit-adjuster", programs().join("ulimit-adjuster"));
    assert_eq!(run.code, 0, "{}", run.text);
    for line in ["CreateContainer web/greeter", "as recorded"] {
        assert!(run.text.contains(line), "{line} is not in {}", run.text);
    }
}

#[test]
fn the_go_programs_that_were_recorded_answer_as_they_did() {
    if env::var_os("NRI_WITHOUT_GO").is_some() {
        return;
    }
    for (name, events) in [("ulimit-adjuster", 4), ("nri-logger", 14)] {
        let run = replay(name, go_program(name));
        assert_eq!(run.code, 0, "{}", run.text);
        let steps = run.json[0]["steps"].as_array().expect("steps").len();
        assert_eq!(steps, events, "{}", run.text);
    }
}

#[test]
fn a_plugin_that_does_something_else_is_told_field_by_field() {
    let words = broken("none");
    let args = [
        "replay".into(),
        recording().into(),
        "--plugin".into(),
        "ulimit-adjuster".into(),
    ];
    let run = Bench::new().answer(args.to_vec(), &words);
    assert_eq!(run.code, 1, "{}", run.text);
    for line in [
        "+ adjust.env[\"GOOD\"]: <redacted>",
        "- adjust.rlimits[\"RLIMIT_NOFILE\"].hard: 4096",
    ] {
        assert!(run.text.contains(line), "{line} is not in {}", run.text);
    }
}

#[test]
fn one_plugin_of_the_two_must_be_named() {
    let run = Bench::new().answer(vec!["replay".into(), recording().into()], &broken("none"));
    assert_eq!((run.code, run.text.as_str()), (2, ""));
}

#[test]
fn the_scenario_of_the_recording_holds_for_the_plugin_that_was_recorded() {
    for (of, program) in [
        ("ulimit-adjuster", "ulimit-adjuster"),
        ("nri-logger", "logger"),
    ] {
        let mut out = Vec::new();
        let init = ["nri-bench", "init", "--plugin", of].map(OsString::from);
        let args = init.into_iter().chain([recording().into()]);
        assert_eq!(
            nri_bench::cli::answer_to(args, &mut out, &mut std::io::stderr()),
            0
        );
        let scenario = String::from_utf8(out).expect("text");
        let scenario = match of {
            // Our plugin also subscribes to validation.
            "nri-logger" => scenario.replace("expect.events", "# expect.events"),
            _ => scenario,
        };
        let plugin = programs().join(program);
        let run = Bench::new().run(&scenario, &[], &[plugin.into()]);
        assert_eq!(run.code, 0, "{scenario}\n{}", run.text);
    }
}
