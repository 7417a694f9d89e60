//! Objects that exist before the plugin, and plugins that are late, lost or replaced.

mod common;

use std::{ffi::OsString, fs};

use common::{Bench, Run, broken};

const CREATE: &str = "[[step]]\ndo = \"create\"\ncontainer = \"c\"\n";
const START: &str = "[[step]]\ndo = \"start\"\ncontainer = \"c\"\n";
const REMOVE: &str = "[[step]]\ndo = \"remove-pod\"\n";

/// Runs the plugin as a launched one, and as one that connects.
fn each_way(scenario: &str, rule: &str, look: impl Fn(&Run)) {
    look(&Bench::new().run(scenario, &[], &broken(rule)));
    let mut plugin = broken(rule);
    plugin.extend(["-socket-path", "{socket}"].map(OsString::from));
    look(&Bench::new().run(scenario, &["--connect"], &plugin));
}

fn steps(run: &Run) -> Vec<&serde_json::Value> {
    let steps = run.json[0]["steps"].as_array();
    steps.into_iter().flatten().collect()
}

#[test]
fn the_answer_to_synchronize_is_compared_whenever_the_plugin_comes() {
    for (limit, code) in [(10, 0), (11, 1)] {
        let expect = format!(
            "expect.updates = [{{ container_id = \"old\", linux.resources.pids.limit = {limit} }}]\n"
        );
        for again in ["crash", "restart", "rollout"] {
            let scenario = format!(
                "[pod.there]\nannotations = {{ a = \"b\" }}\ncontainers = [\"old\"]\n\
                 [[step]]\ndo = \"join\"\npods = [\"there\"]\n{expect}\
                 [[step]]\ndo = \"{again}\"\n{expect}"
            );
            let run = Bench::new().run(&scenario, &[], &broken("restless"));
            assert_eq!(run.code, code, "{again}: {}", run.text);
            let failed = |n: usize| steps(&run)[n]["failures"].as_array().map(Vec::len);
            assert_eq!(failed(0), Some(usize::from(code)), "{}", run.text);
            assert_eq!(failed(1), Some(usize::from(code)), "{}", run.text);
        }
    }
}

#[test]
fn a_late_answer_may_be_expected_and_later_steps_are_made() {
    for (expect, code) in [("expect.late = true\n", 0), ("", 1)] {
        let scenario = format!(
            "runtime.request_timeout = \"300ms\"\n{CREATE}{START}{expect}[[step]]\ndo = \"update\"\n\
             container = \"c\"\nresources.pids.limit = 5\nexpect.resources.pids.limit = 5\n{REMOVE}"
        );
        each_way(&scenario, "late-answer", |run| {
            assert_eq!(run.code, code, "{}", run.text);
            assert_eq!(steps(run).len(), 6, "{}", run.text);
            assert!(run.text.contains("it was back after"), "{}", run.text);
            let rules: &[&str] = if code == 0 { &[] } else { &["late-answer"] };
            assert_eq!(run.rules(), rules, "{}", run.text);
        });
    }
}

#[test]
fn a_plugin_that_ends_is_one_finding_with_its_status_unless_that_is_expected() {
    for (rule, expect, code, says) in [
        ("exits", "", 1, "it ended with exit status: 3"),
        ("exits", "expect.exit = 3", 0, "lost, as expected"),
        (
            "exits",
            "expect.exit = 4",
            1,
            "the plugin ended with exit status: 3: expected exit status: 4",
        ),
        ("exits", "expect.lost = true", 0, "lost, as expected"),
        (
            "lost-connection",
            "",
            1,
            "it ended with signal: 9 (SIGKILL)",
        ),
        (
            "lost-connection",
            "expect.exit = \"SIGKILL\"",
            0,
            "lost, as expected",
        ),
        (
            "none",
            "expect.lost = true",
            1,
            "the connection was not lost",
        ),
    ] {
        let scenario = format!("{CREATE}{START}{expect}\n{REMOVE}");
        each_way(&scenario, rule, |run| {
            assert_eq!(run.code, code, "{rule} {expect}: {}", run.text);
            assert!(run.text.contains(says), "{says} is not in {}", run.text);
            assert_eq!(steps(run).len(), 5, "later steps are made: {}", run.text);
            let findings = steps(run)[2]["findings"].as_array().map(Vec::len);
            let unexpected = expect.is_empty() && rule != "none";
            assert_eq!(findings, Some(usize::from(unexpected)), "{}", run.text);
        });
    }
    let allowed = format!("allow = [\"lost-connection\"]\n{CREATE}{START}{REMOVE}");
    each_way(&allowed, "exits", |run| {
        assert_eq!((run.code, steps(run).len()), (0, 5), "{}", run.text);
    });
}

#[test]
fn a_refused_creation_fails_once() {
    let xml = Bench::new();
    let file = xml.path("out.xml");
    let flags = ["--junit", file.to_str().expect("a name")];
    let scenario = format!(
        "{CREATE}{START}[[step]]\ndo = \"stop\"\ncontainer = \"c\"\nexpect.prints = [\"never\"]\n"
    );
    let run = Bench::new().run(&scenario, &flags, &broken("refuses"));
    assert_eq!(run.code, 1, "{}", run.text);
    assert!(run.text.contains("failed: 1 of 5 steps"), "{}", run.text);
    let skipped = |n: usize| steps(&run)[n]["skipped"].as_str().unwrap_or_default();
    for n in [2, 3] {
        assert!(
            skipped(n).contains("there is no container \"c\""),
            "{}",
            run.text
        );
    }
    let xml = fs::read_to_string(file).expect("it was written");
    assert!(
        xml.contains("failures=\"1\" errors=\"0\" skipped=\"2\""),
        "{xml}"
    );
}

#[test]
fn a_rollout_may_be_to_another_program_which_stays() {
    let program = broken("none")[0].clone();
    let program = program.to_str().expect("a name").to_owned();
    let expect =
        |value: &str| format!("expect.adjust.env = [{{ key = \"GOOD\", value = \"{value}\" }}]\n");
    for connected in [false, true] {
        let mut words = vec![program.as_str(), "adjusts-otherwise"];
        if connected {
            words.extend(["-socket-path", "{socket}"]);
        }
        let create = |name: &str| format!("[[step]]\ndo = \"create\"\ncontainer = \"{name}\"\n");
        let scenario = format!(
            "{}{}[[step]]\ndo = \"rollout\"\nwith = {words:?}\n{}{}[[step]]\ndo = \"crash\"\n{}{}",
            create("a"),
            expect("1"),
            create("b"),
            expect("2"),
            create("c"),
            expect("2"),
        );
        let mut plugin = broken("none");
        let mut flags = Vec::new();
        if connected {
            plugin.extend(["-socket-path", "{socket}"].map(OsString::from));
            flags.push("--connect");
        }
        let run = Bench::new().run(&scenario, &flags, &plugin);
        assert_eq!(run.code, 0, "{}", run.text);
    }
}

#[test]
fn a_plugin_that_nri_bench_did_not_start_has_no_output_status_or_successor() {
    for (step, key) in [
        ("do = \"rollout\"\nwith = [\"x\"]", "with"),
        ("do = \"run-pod\"\nexpect.prints = [\"x\"]", "expect.prints"),
        ("do = \"run-pod\"\nexpect.exit = 3", "expect.exit"),
    ] {
        let bench = Bench::new();
        let socket = bench.path("listen.sock");
        let flags = ["--listen", socket.to_str().expect("a name")];
        let run = bench.run(&format!("[[step]]\n{step}\n"), &flags, &[]);
        assert_eq!(run.code, 2, "{}", run.text);
        let line = format!("scenario.toml:1: `{key}`");
        assert!(run.errors.contains(&line), "{}", run.errors);
    }
}

/// Another plugin's adjustment of most fields.
const MUCH: &str = r#"
[container.c]
env = ["A=0"]
[[other]]
id = "05-other"
adjust.env = [{ key = "A", value = "1" }, { key = "B", value = "" }]
adjust.annotations = { "a.b/c" = "d", e = "" }
adjust.mounts = [{ destination = "/m", type = "bind", source = "/etc", options = ["rbind", "ro"] }]
adjust.rlimits = [{ type = "RLIMIT_CORE", hard = "18446744073709551615", soft = 0 }]
adjust.cdi_devices = [{ name = "v.e/c=d" }]
adjust.args = ["sh", "-c"]
adjust.hooks.create_runtime = [{ path = "/h", args = ["h"] }]
adjust.linux.devices = [{ path = "/dev/x", type = "c", major = 1, minor = 0 }]
adjust.linux.cgroups_path = "/x"
adjust.linux.oom_score_adj = 0
adjust.linux.sysctl = { "net.a" = "1" }
adjust.linux.scheduler = { policy = "SCHED_BATCH", nice = 5 }
adjust.linux.resources.memory.limit = 67108864
adjust.linux.resources.cpu = { cpus = "0", shares = 7 }
adjust.linux.resources.pids.limit = 9
adjust.linux.resources.hugepage_limits = [{ page_size = "2MB", limit = 1 }]
adjust.linux.resources.unified = { "memory.high" = "9" }
"#;

#[test]
fn each_change_that_is_printed_may_be_pasted_into_expect() {
    let before = format!(
        "{MUCH}[pod.there]\ncontainers = [\"old\"]\n[[step]]\ndo = \"join\"\npods = [\"there\"]\n"
    );
    let update = "[[step]]\ndo = \"update\"\ncontainer = \"c\"\nresources.cpu.shares = 5\n";
    let run = |expect: [&str; 3]| {
        let [join, create, of_update] = expect;
        let scenario = format!("{before}{join}\n{CREATE}{create}\n{update}{of_update}\n");
        Bench::new().run(&scenario, &[], &broken("restless"))
    };
    let plain = run([""; 3]);
    assert_eq!(plain.code, 0, "{}", plain.text);
    let mut pasted = 0;
    for (n, step) in steps(&plain).iter().enumerate().take(3) {
        for change in step["changes"].as_array().into_iter().flatten() {
            let line = change["expect"].as_str().expect("nothing is removed");
            assert!(plain.text.contains(line), "{line}: {}", plain.text);
            let line = format!("expect.{line}");
            let mut expect = [""; 3];
            expect[n] = &line;
            let run = run(expect);
            assert_eq!(run.code, 0, "{line}: {}{}", run.text, run.errors);
            pasted += 1;
        }
    }
    assert!(pasted > 20, "{pasted}: {}", plain.text);
}

#[test]
fn a_recording_becomes_a_scenario_with_what_the_plugin_answered_to_synchronize_and_update() {
    let line = |id: u32, from: &str, is: &str, method: &str, message: &str| {
        format!(
            "{{\"at\":0.1,\"connection\":1,\"plugin\":\"10-plugin\",\"is\":\"{is}\",\"from\":\"{from}\",\"id\":{id},\
             \"service\":\"nri.pkg.api.v1alpha1.Plugin\",\"method\":\"{method}\",\"message\":{message}}}\n"
        )
    };
    let call = |id: u32, method: &str, request: &str, answer: &str| {
        line(id, "runtime", "request", method, request)
            + &line(id, "plugin", "answer", method, answer)
    };
    let pod = "{\"id\":\"p1\",\"name\":\"web\",\"annotations\":{\"size\":\"large\"}}";
    let container = "{\"id\":\"c1\",\"pod_sandbox_id\":\"p1\",\"name\":\"greeter\",\"state\":1}";
    let limit = |id: &str, limit: u32| {
        format!(
            "{{\"update\":[{{\"container_id\":\"{id}\",\"linux\":{{\"resources\":{{\"pids\":{{\"limit\":{limit}}}}}}}}}]}}"
        )
    };
    let recording = [
        "{\"nri-recording\":1,\"recorder\":\"r\",\"began\":\"\",\"env\":\"kept\"}\n".to_owned(),
        call(1, "Configure", "{\"runtime_name\":\"x\"}", "{\"events\":0}"),
        // In two parts.
        call(3, "Synchronize", &format!("{{\"pods\":[{pod}],\"more\":true}}"), "{\"more\":true}"),
        call(5, "Synchronize", &format!("{{\"containers\":[{container}]}}"), &limit("c1", 10)),
        call(
            7,
            "UpdateContainer",
            &format!(
                "{{\"pod\":{pod},\"container\":{container},\"linux_resources\":{{\"cpu\":{{\"shares\":{{\"value\":5}}}}}}}}"
            ),
            &limit("c1", 10),
        ),
    ]
    .concat()
    .replace("\"events\":0", "\"events\":4095");
    let bench = Bench::new();
    let file = bench.path("r.jsonl");
    fs::write(&file, recording).expect("a file");
    let run = bench.answer_plain(vec!["init".into(), file.into()]);
    let scenario = run.text.replace("expect.events", "# expect.events");
    for line in [
        "annotations = { size = \"large\" }\n",
        "\ncontainers = [\"greeter\"]\n",
        "[container.greeter]\nid = \"c1\"\nstate = 1\n",
        "do = \"join\"\npods = [\"web\"]\n",
        "expect.updates = [{ container_id = \"greeter\", linux = { resources = { pids = { limit = 10 } } } }]\n",
        "do = \"update\"\ncontainer = \"greeter\"\nresources = { cpu = { shares = 5 } }\n\
         expect.resources.pids = { limit = 10 }\n",
    ] {
        assert!(
            scenario.contains(line),
            "{line} is not in {scenario}{}",
            run.errors
        );
    }
    let run = bench.run(&scenario, &[], &broken("restless"));
    assert_eq!(run.code, 0, "{scenario}{}{}", run.text, run.errors);
    let run = bench.run(&scenario, &[], &broken("none"));
    assert!(run.text.contains("failed: 2 of 3 steps"), "{}", run.text);
}
