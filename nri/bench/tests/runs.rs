//! The output of nri-bench for scenarios: passed and failed steps, and errors in them; and its exit
//! codes.

mod common;

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{Bench, broken};
use rustix::process::{Pid, Signal, kill_process};

const CREATE: &str = "[[step]]\ndo = \"create\"\ncontainer = \"c\"\n";

#[test]
fn an_adjustment_is_shown_with_who_made_it_and_what_was_there_before() {
    let scenario = format!(
        "[container.c]\nenv = [\"GOOD=0\"]\n[[other]]\nid = \"05-other\"\nadjust.annotations = {{ a = \"b\" }}\n{CREATE}"
    );
    let run = Bench::new().run(&scenario, &[], &broken("none"));
    assert_eq!(run.code, 0, "{}", run.text);
    assert!(
        run.text
            .contains("~ adjust.env = [{ key = \"GOOD\", value = \"1\" }] # 10-plugin, was \"0\""),
        "{}",
        run.text
    );
    assert!(
        run.text
            .contains("+ adjust.annotations.a = \"b\" # 05-other"),
        "{}",
        run.text
    );
    assert_eq!(run.json[0]["steps"][1]["changes"][1]["by"][0], "10-plugin");
}

#[test]
fn an_expectation_that_is_not_met_fails_with_both_values() {
    let bench = Bench::new();
    for (expect, says) in [
        (
            "adjust.env = [{ key = \"GOOD\", value = \"2\" }]",
            "adjust.env[\"GOOD\"].value: expected \"2\", found \"1\"",
        ),
        (
            "adjust.linux.resources.memory.limit = 7",
            "adjust.linux.resources.memory.limit: expected 7, found nothing",
        ),
        ("adjust = {}\nexpect.exact = true", "was not expected"),
        (
            "unchanged = true",
            "adjust.env[\"GOOD\"] was changed: expected nothing",
        ),
        ("error = \"x\"", "no error: expected one with \"x\""),
        (
            "updates = [{ container_id = \"d\" }]",
            "no update of container d",
        ),
        (
            "evictions = [{ container_id = \"d\" }]",
            "no eviction of container d",
        ),
        (
            "prints = [\"never said\"]",
            "\"never said\" was not printed",
        ),
        ("within = \"1us\"", "was answered after"),
    ] {
        let run = bench.run(&format!("{CREATE}expect.{expect}\n"), &[], &broken("none"));
        assert_eq!(run.code, 1, "{expect}: {}", run.text);
        assert!(run.text.contains(says), "{says:?} is not in {}", run.text);
        assert_eq!(run.rules(), Vec::<&str>::new(), "{}", run.text);
    }
}

#[test]
fn a_refusal_fails_unless_it_is_the_one_that_is_expected() {
    let bench = Bench::new();
    for (expect, code) in [
        ("expect.error = \"not on my watch\"", 0),
        ("expect.error = \"something else\"", 1),
        ("", 1),
    ] {
        let run = bench.run(&format!("{CREATE}{expect}\n"), &[], &broken("refuses"));
        assert_eq!(run.code, code, "{expect}: {}", run.text);
        assert!(run.text.contains("not on my watch"), "{}", run.text);
    }
}

#[test]
fn what_is_wrong_with_a_scenario_is_said_with_its_line_before_anything_is_started() {
    let bench = Bench::new();
    for (scenario, says) in [
        ("nme = \"x\"", "1: unknown field `nme`"),
        (
            "[pod.web]\n[[step]]\ndo = \"create\"\npod = \"wbe\"\ncontainer = \"c\"",
            "1: no step has the pod \"web\"; the steps have \"wbe\"",
        ),
        (
            "[container.c]\n[[step]]\ndo = \"crash\"",
            "1: no step has the container \"c\"; the steps have none",
        ),
        (
            "[pod.web]\nruntime.request_timeout = \"3s\"",
            "2: pod.web.runtime: unknown field `runtime`, expected one of `annotations`, `id`, `ips`, `labels`, `linux`, \
             `name`, `namespace`, `pid`, `runtime_handler`, `uid`; `runtime` of the scenario must be above the first [table]",
        ),
        (
            "[[step]]\ndo = \"slow\"\nby = 100",
            "3: invalid type: integer `100`, expected a duration such as \"100ms\"",
        ),
        (
            "[[step]]\ndo = \"create\"\ncontainr = \"c\"",
            "3: unknown field `containr`",
        ),
        (
            "[[step]]\ndo = \"create\"",
            "1: a step that does \"create\" needs `container`",
        ),
        (
            "\n[[step]]\ndo = \"dance\"",
            "2: `do = \"dance\"` is not known",
        ),
        (
            "[[step]]\ndo = \"crash\"\npods = 1",
            "1: `pods` means nothing at a step that does \"crash\"",
        ),
        (
            "[[step]]\ndo = \"crash\"\n[[step]]\ndo = \"join\"",
            "3: join must be the first step",
        ),
        (
            "[pod.a]\nlabels = {}\nanotations = {}",
            "3: pod.a.anotations: unknown field `anotations`",
        ),
        (
            "[[step]]\ndo = \"create\"\ncontainer = \"c\"\n[step.expect]\nadjust.env = 5",
            "5: step.0.expect.adjust.env: 5 is not a list",
        ),
        (
            "[[step]]\ndo = \"create\"\ncontainer = \"c\"\nexpect.prints = []",
            "4: `expect.prints` asks for nothing",
        ),
        (
            "[[step]]\ndo = \"create\"\ncontainer = \"c\"\nexpect.prints = [\"\"]",
            "4: `expect.prints` asks for nothing",
        ),
        (
            "[[step]]\ndo = \"create\"\ncontainer = \"c\"\nexpect.adjust = { linux = {}, env = [] }",
            "4: `expect.adjust` asks for nothing",
        ),
        (
            "[[step]]\ndo = \"create\"\ncontainer = \"c\"\nexpect.late = false",
            "4: `expect.late` is true, or left out",
        ),
        (
            "[[step]]\ndo = \"create\"\ncontainer = \"c\"\nexpect.exact = true",
            "4: `expect.exact` needs `expect.adjust`",
        ),
        (
            "[[step]]\ndo = \"start\"\ncontainer = \"c\"\nexpect.exit = \"KILL\"",
            "4: exit \"KILL\": must be a number, or a signal",
        ),
        (
            "[pod.a]\ncontainers = [\"c\"]\n[[step]]\ndo = \"join\"\npods = 1",
            "2: pod.a.containers: `pods` of the `join` must list \"a\"",
        ),
        (
            "[[step]]\ndo = \"create\"\ncontainer = \"c\"\nexpect.adjust.linux.oom_score_adj = \"x\"",
            "4: step.0.expect.adjust.linux.oom_score_adj: \"x\" is not a number, nor the name of a value",
        ),
        (
            "[[step]]\ndo = \"join\"\nexpect.events = \"Create\"",
            "3: unknown event or group of events \"Create\"; events are RunPodSandbox, ",
        ),
        (
            "runtime.cpus = \"few\"",
            "1: cpus \"few\": must be a list such as 0-3,7",
        ),
        ("allow = [\"nothing\"]", "1: no rule is called \"nothing\""),
        ("plugin.id = \"x\"", "1: plugin id \"x\""),
        (
            "runtime.request_timeout = \"5\"",
            "1: \"5\": must be a number and us, ms or s",
        ),
        (
            "[[step]]\ndo = \"slow\"\nby = \"2s\"",
            "1: by 2s: must be less than request_timeout",
        ),
        (
            "growth = \"much\"",
            "1: \"much\": must be a number and KiB or MiB",
        ),
        (
            "[validator]\nallowed_mount_sources = [\"x\"]",
            "1: allowed_mount_sources",
        ),
    ] {
        let file = bench.path("wrong.toml");
        fs::write(&file, scenario).expect("a file");
        let output = Command::new(env!("CARGO_BIN_EXE_nri-bench"))
            .arg("run")
            .arg(&file)
            .args(["--", "/nosuch"])
            .output();
        let output = output.expect("it runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{scenario}: {printed}");
        assert!(
            printed.contains(&format!("wrong.toml:{says}")),
            "{says:?} is not in {printed}"
        );
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
}

#[test]
fn a_plugin_that_does_not_join_is_misuse_and_it_says_why() {
    let bench = Bench::new();
    let run = bench.run(CREATE, &[], &["false".into()]);
    assert_eq!(run.code, 2, "{}", run.text);
    assert!(
        run.text.contains("ended with exit status: 1"),
        "{}",
        run.text
    );
    let run = bench.run(
        "runtime.join_timeout = \"200ms\"",
        &[],
        &["sleep".into(), "60".into()],
    );
    assert_eq!(run.code, 2, "{}", run.text);
    assert!(
        run.text.contains("no plugin has joined within 200ms"),
        "{}",
        run.text
    );
    let run = bench.run(
        "runtime.join_timeout = \"200ms\"",
        &["--connect"],
        &["sleep".into(), "60".into()],
    );
    assert!(
        run.text.contains("none of its arguments has {socket}"),
        "{}",
        run.text
    );
    assert_eq!(bench.run(CREATE, &[], &[]).code, 2, "no plugin is named");
    let run = bench.run(CREATE, &[], &["/nosuch".into()]);
    assert_eq!(run.code, 2);
    assert!(
        run.errors
            .contains("start the plugin \"/nosuch\": No such file"),
        "{}",
        run.errors
    );
}

#[test]
fn the_runtime_speaks_as_it_is_told() {
    let bench = Bench::new();
    for (speaks, plugin, as_state_change) in [
        ("dedicated-calls", "none", false),
        ("state-change", "none", true),
        ("dedicated-calls", "state-change", true),
    ] {
        let speaks = format!("speaks = \"{speaks}\"\n");
        let start = "[[step]]\ndo = \"start\"\ncontainer = \"c\"\n[[step]]\ndo = \"remove-pod\"\n";
        let run = bench.run(&format!("{speaks}{CREATE}{start}"), &[], &broken(plugin));
        assert_eq!(run.code, 0, "{speaks} {plugin}: {}", run.text);
        let says = "it takes StartContainer as StateChange";
        assert_eq!(
            run.text.contains(says),
            as_state_change,
            "{speaks} {plugin}: {}",
            run.text
        );
    }
}

#[test]
fn a_plugin_comes_back_after_a_crash_a_restart_and_a_rollout() {
    let lives =
        "[[step]]\ndo = \"crash\"\n[[step]]\ndo = \"restart\"\n[[step]]\ndo = \"rollout\"\n";
    let scenario = format!(
        "{CREATE}{lives}[[step]]\ndo = \"start\"\ncontainer = \"c\"\n[[step]]\ndo = \"remove-pod\"\n"
    );
    let bench = Bench::new();
    let run = bench.run(&scenario, &[], &broken("none"));
    assert_eq!(run.code, 0, "{}", run.text);
    assert!(
        run.text.contains("started anew"),
        "launched plugins do not come back: {}",
        run.text
    );
    let mut plugin = broken("none");
    plugin.extend(["-socket-path".into(), "{socket}".into()]);
    let run = bench.run(&scenario, &["--connect"], &plugin);
    assert_eq!(run.code, 0, "{}", run.text);
    assert!(
        !run.text.contains("started anew"),
        "this one does: {}",
        run.text
    );
}

#[test]
fn a_plugin_that_does_not_come_back_fails_the_step_that_it_should_have_come_back_in() {
    let scenario = format!(
        "runtime.join_timeout = \"4s\"\n{CREATE}[[step]]\ndo = \"crash\"\n[[step]]\ndo = \"remove-pod\"\n"
    );
    let mut plugin = broken("stays-away");
    plugin.extend(["-socket-path".into(), "{socket}".into()]);
    let run = Bench::new().run(&scenario, &["--connect"], &plugin);
    assert_eq!(run.code, 1, "{}", run.text);
    let steps = run.json[0]["steps"].as_array().expect("steps");
    let last = steps.last().expect("some");
    assert_eq!(
        (steps.len(), &last["title"]),
        (3, &"crash".into()),
        "{}",
        run.text
    );
    let why = last["failures"].to_string();
    assert!(
        why.contains("no plugin has joined within 4s"),
        "{}",
        run.text
    );
}

#[test]
fn an_interrupted_run_leaves_no_plugin_and_no_directory() {
    let bench = Bench::new();
    let file = bench.path("scenario.toml");
    fs::write(&file, "[[step]]\ndo = \"churn\"\ntimes = 100000\n").expect("a file");
    let temporary = bench.path("tmp");
    fs::create_dir(&temporary).expect("a folder");
    let words = broken("outlives-runtime");
    let mut run = Command::new(env!("CARGO_BIN_EXE_nri-bench"))
        .args(["run", "--connect"])
        .arg(&file)
        .arg("--")
        .args(&words)
        .args(["-socket-path", "{socket}"])
        .env("TMPDIR", &temporary)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let plugin = until("it has started the plugin", || {
        let children = fs::read_to_string(&children).unwrap_or_default();
        children.split_whitespace().next().map(str::to_owned)
    });
    assert_eq!(fs::read_dir(&temporary).expect("ours").count(), 2);
    kill_process(Pid::from_child(&run), Signal::TERM).expect("it is there");
    let status = run.wait().expect("it ends");
    assert_eq!(status.code(), Some(2));
    // The parent that inherits it may reap it late.
    let gone = || {
        let stat = fs::read_to_string(format!("/proc/{plugin}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    };
    until("the plugin is gone", gone);
    assert_eq!(fs::read_dir(&temporary).expect("ours").count(), 0);
}

/// Polls for a value, with a deadline.
fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn completions_know_every_command() {
    let mut out = Vec::new();
    let args = ["nri-bench", "completion", "bash"].map(Into::into);
    assert_eq!(
        nri_bench::cli::answer_to(args, &mut out, &mut std::io::stderr()),
        0
    );
    let script = String::from_utf8_lossy(&out);
    for word in ["run", "init", "rules", "completion", "--connect", "--junit"] {
        assert!(script.contains(word), "{word} is not in {script}");
    }
}

#[test]
fn a_slow_runtime_takes_its_time() {
    let scenario =
        format!("[[step]]\ndo = \"join\"\n[[step]]\ndo = \"slow\"\nby = \"30ms\"\n{CREATE}");
    let run = Bench::new().run(&scenario, &[], &broken("none"));
    assert_eq!(run.code, 0, "{}", run.text);
    // RunPodSandbox and CreateContainer.
    let took = run.json[0]["steps"][2]["took"].as_f64().unwrap_or_default();
    assert!(took >= 0.06, "{took}: {}", run.text);
}

#[test]
fn a_plugin_that_somebody_else_starts_is_waited_for() {
    let bench = Bench::new();
    let socket = bench.path("listen.sock");
    let words = broken("none");
    let mut plugin = Command::new(&words[0])
        .args(["none", "-socket-path"])
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    let file = bench.path("scenario.toml");
    fs::write(
        &file,
        format!("{CREATE}[[step]]\ndo = \"churn\"\ntimes = 5\n"),
    )
    .expect("a file");
    let args = vec!["run".into(), file.into(), "--listen".into(), socket.into()];
    let run = bench.answer(args, &[]);
    let _ = plugin.kill();
    let _ = plugin.wait();
    assert_eq!(run.code, 0, "{}", run.text);
    assert!(
        run.text.contains("KiB after 5 pods"),
        "its process is known: {}",
        run.text
    );
}

#[test]
fn several_scenarios_are_one_run_and_one_junit_file() {
    let bench = Bench::new();
    let (good, bad, xml) = (
        bench.path("good.toml"),
        bench.path("bad.toml"),
        bench.path("out.xml"),
    );
    fs::write(&good, CREATE).expect("a file");
    fs::write(&bad, format!("{CREATE}expect.error = \"x\"\n")).expect("a file");
    let args = vec![
        "run".into(),
        good.into(),
        bad.into(),
        "--junit".into(),
        xml.clone().into(),
    ];
    let run = bench.answer(args, &broken("none"));
    assert_eq!(run.code, 1, "{}", run.text);
    let xml = fs::read_to_string(xml).expect("it was written");
    assert!(
        xml.contains("good.toml\" tests=\"3\" failures=\"0\""),
        "{xml}"
    );
    assert!(
        xml.contains("bad.toml\" tests=\"3\" failures=\"1\""),
        "{xml}"
    );
}

#[test]
fn a_report_that_cannot_be_written_is_an_error_before_the_plugin_is_started() {
    let bench = Bench::new();
    let scenario = bench.path("scenario.toml");
    fs::write(&scenario, CREATE).expect("a file");
    let started = bench.path("started");
    let directory = bench.path("there");
    fs::create_dir(&directory).expect("a directory");
    let missing = bench.path("missing/out.xml");
    for (flag, file, cause) in [
        ("--junit", &missing, "missing: No such file or directory"),
        ("--json", &missing, "missing: No such file or directory"),
        ("--junit", &directory, "it is a directory"),
    ] {
        let args = vec![
            "run".into(),
            scenario.clone().into(),
            flag.into(),
            file.clone().into(),
            "--".into(),
            "touch".into(),
            started.clone().into(),
        ];
        let run = bench.answer_plain(args);
        let text = &run.errors;
        assert_eq!(run.code, 2, "{text}");
        let begin = format!("cannot write {}: ", file.display());
        assert!(text.contains(&begin) && text.contains(cause), "{text}");
        assert!(!started.exists(), "the plugin was started");
    }
}

#[test]
fn rules_are_listed_with_source_and_remedy() {
    let mut out = Vec::new();
    let args = ["nri-bench", "rules"].map(Into::into);
    assert_eq!(
        nri_bench::cli::answer_to(args, &mut out, &mut std::io::stderr()),
        0
    );
    let text = String::from_utf8_lossy(&out);
    for about in nri_bench::rules::ALL {
        assert!(
            text.contains(&format!("{}: {}\n", about.name, about.what)),
            "{text}"
        );
        assert!(
            text.contains(about.remedy) && text.contains(about.source),
            "{text}"
        );
    }
}

#[test]
fn the_guide_tells_every_rule_step_and_expectation() {
    let guide = include_str!("../../../docs/bench.md");
    let rules = nri_bench::rules::ALL.iter().map(|about| about.name);
    let printed = |word: &str| guide.contains(&format!("`{word}`"));
    let untold: Vec<_> = rules.filter(|rule| !printed(rule)).collect();
    assert_eq!(untold, Vec::<&str>::new());
    // The keys of a scenario, as the reader lists them.
    for (scenario, skip) in [
        ("nothing = 1", 0),
        ("[[step]]\nnothing = 1", 0),
        ("[[step]]\ndo = \"crash\"\nexpect.nothing = 1", 0),
        ("[[step]]\ndo = \"nothing\"", 1),
    ] {
        let bad = nri_bench::scenario::read("x", scenario).expect_err("no such word");
        let words: Vec<_> = match skip {
            0 => bad.why.split('`').skip(3).step_by(2).collect(),
            _ => bad
                .why
                .rsplit(": ")
                .next()
                .unwrap_or_default()
                .split([',', ' '])
                .collect(),
        };
        let untold: Vec<_> = words
            .into_iter()
            .filter(|word| !word.is_empty() && *word != "or")
            .filter(|word| {
                !printed(word)
                    && !guide.contains(&format!("[{word}.NAME]"))
                    && !guide.contains(&format!("[[{word}]]"))
            })
            .collect();
        assert_eq!(untold, Vec::<&str>::new(), "{}", bad.why);
    }
}
