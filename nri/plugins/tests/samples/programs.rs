//! v010-adapter with a separate program; and the command line of every program.

use std::process::Command;

use nri::proto::{Event, OptionalInt64};
use tokio::net::{UnixListener, UnixStream};

use crate::world::{World, container, pod};

const ALL: [(&str, &str); 13] = [
    ("logger", env!("CARGO_BIN_EXE_logger")),
    ("differ", env!("CARGO_BIN_EXE_differ")),
    ("device-injector", env!("CARGO_BIN_EXE_device-injector")),
    ("hook-injector", env!("CARGO_BIN_EXE_hook-injector")),
    (
        "network-device-injector",
        env!("CARGO_BIN_EXE_network-device-injector"),
    ),
    ("network-logger", env!("CARGO_BIN_EXE_network-logger")),
    ("ulimit-adjuster", env!("CARGO_BIN_EXE_ulimit-adjuster")),
    ("rdt", env!("CARGO_BIN_EXE_rdt")),
    ("writable-cgroups", env!("CARGO_BIN_EXE_writable-cgroups")),
    ("template", env!("CARGO_BIN_EXE_template")),
    ("v010-adapter", env!("CARGO_BIN_EXE_v010-adapter")),
    ("default-validator", env!("CARGO_BIN_EXE_default-validator")),
    ("demo-adjuster", env!("CARGO_BIN_EXE_demo-adjuster")),
];

/// Returns the lines in the README between the fences below `### name`.
fn usage_in_readme(name: &str) -> Vec<&'static str> {
    let (_, rest) = include_str!("../../README.md")
        .split_once(&format!("### {name}\n```\n"))
        .unwrap_or_else(|| panic!("the README has no usage of {name}"));
    rest.lines().take_while(|line| *line != "```").collect()
}

#[test]
fn every_program_explains_itself_as_the_readme_does_and_refuses_unknown_flags() {
    for (name, program) in ALL {
        let help = Command::new(program)
            .arg("--help")
            .output()
            .expect("it runs");
        assert_eq!(help.status.code(), Some(0), "{name}");
        let text = String::from_utf8_lossy(&help.stdout);
        assert!(
            text.contains(&format!("Usage: {name} ")) && text.contains("-socket-path"),
            "{text}"
        );
        let usage = usage_in_readme(name);
        assert!(usage.len() == 3, "{name}: {usage:?}");
        for line in usage {
            assert!(
                text.contains(line),
                "{line:?} of the README is not in {text}"
            );
        }
        let wrong = Command::new(program)
            .arg("-nosuch")
            .output()
            .expect("it runs");
        assert_eq!(wrong.status.code(), Some(2), "{name}");
        let text = String::from_utf8_lossy(&wrong.stderr);
        assert!(text.contains("-nosuch"), "{text}");
    }
}

#[test]
fn a_program_without_a_runtime_or_an_index_says_so_and_exits_1() {
    let program = env!("CARGO_BIN_EXE_rdt");
    let nobody = Command::new(program)
        .args(["-idx", "10", "-socket", "/nosuch/nri.sock"])
        .output();
    let nobody = nobody.expect("it runs");
    assert_eq!(nobody.status.code(), Some(1));
    let text = String::from_utf8_lossy(&nobody.stderr);
    assert!(text.contains("/nosuch/nri.sock"), "{text}");
    let nameless = Command::new(program).output().expect("it runs");
    assert_eq!(nameless.status.code(), Some(1));
    assert!(!nameless.stderr.is_empty());
}

/// Appends its input to a file, and answers with the first line of another one.
const PROGRAM: &str =
    "#!/bin/sh\nhere=$(dirname \"$0\")\n{ cat; echo; } >>\"$here/asked\"\ncat \"$here/answer\"\n";

#[tokio::test]
async fn programs_of_nri_0_1_are_told_and_can_veto() {
    let mut world = World::start().await;
    let program = world.write_program("old-plugin", PROGRAM);
    let list = format!(
        r#"{{"plugins": [{{"type": "{program}", "conf": {{"k": 1}}}}, {{"type": "{program}"}}]}}"#
    );
    let config = world.write("conf.json", &list);
    let answer = r#"{"plugin": "old", "version": "0.1", "error": "", "metadata": {"m": "1"}}"#;
    world.write("answer", answer);
    let adapter = env!("CARGO_BIN_EXE_v010-adapter");
    let flags = ["-idx", "10", "-config", &config];
    world.run(adapter, &flags, &["10-v010-adapter"]).await;

    world
        .nri
        .run_pod_sandbox(pod(&[("a", "1")]))
        .await
        .expect("no veto");
    let asked = world.read("asked");
    let asked: Vec<serde_json::Value> = asked
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0]["state"], "create");
    assert_eq!(asked[0]["version"], "0.1");
    assert_eq!(asked[0]["conf"]["k"], 1);
    assert_eq!(
        (&asked[0]["id"], &asked[0]["sandboxID"]),
        (&"pod0-id".into(), &"pod0-id".into())
    );
    assert_eq!(asked[0]["spec"]["namespaces"]["network"], "/run/netns/pod0");
    assert_eq!(asked[0]["spec"]["annotations"]["a"], "1");
    assert!(asked[0].get("results").is_none());
    assert_eq!(asked[1]["results"][0]["metadata"]["m"], "1");
    assert!(asked[1].get("conf").is_none());

    world.write("answer", r#"{"plugin": "old", "error": "no room"}"#);
    let mut ctr = container();
    ctr.pid = 77;
    ctr.annotations.insert("mark".into(), "of ctr0".into());
    let linux = ctr.linux.get_or_insert_default();
    linux.cgroups_path = "/pods/ctr0".into();
    let memory = linux.resources.get_or_insert_default();
    memory.memory.get_or_insert_default().limit = Some(OptionalInt64 { value: 64 << 20 });
    let refused = world
        .nri
        .start_container(pod(&[]), ctr.clone())
        .await
        .expect_err("a veto");
    assert!(refused.to_string().contains("no room"), "{refused}");
    let last = world.read("asked");
    let last: serde_json::Value =
        serde_json::from_str(last.lines().last().expect("asked")).expect("JSON");
    assert_eq!((&last["id"], &last["pid"]), (&"ctr0-id".into(), &77.into()));
    assert_eq!(last["spec"]["resources"]["memory"]["limit"], 64 << 20);
    assert_eq!(last["spec"]["annotations"]["mark"], "of ctr0");
    assert_eq!(last["spec"]["cgroupsPath"], "/pods/ctr0");
    world.write("answer", "junk");
    let refused = world
        .nri
        .start_container(pod(&[]), ctr.clone())
        .await
        .expect_err("no result");
    assert!(refused.to_string().contains("not a result"), "{refused}");
    let turn = world.nri.turn(Event::StopContainer).await;
    let stopped = world.nri.stop_container(&turn, pod(&[]), ctr).await;
    assert_eq!(
        stopped.deliveries[0].outcome,
        nri::Outcome::Answered,
        "only logged"
    );
    world.nri.stop_pod_sandbox(pod(&[])).await;
    world.nri.remove_pod_sandbox(pod(&[])).await;
    let reported: Vec<serde_json::Value> = world
        .read("asked")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let deleted: Vec<_> = reported.iter().filter(|a| a["state"] == "delete").collect();
    let ids: Vec<_> = deleted.iter().map(|a| &a["id"]).collect();
    assert_eq!(ids.first(), Some(&&"ctr0-id".into()), "{reported:?}");
    assert_eq!(ids.last(), Some(&&"pod0-id".into()), "{reported:?}");
    assert!(
        reported.iter().all(|a| a["sandboxID"] == "pod0-id"),
        "{reported:?}"
    );
}

#[tokio::test]
async fn programs_of_nri_0_1_find_their_tools_though_a_launched_plugin_has_no_path() {
    let mut world = World::start().await;
    let program = world.write_program("old-plugin", PROGRAM);
    // Like a launch by a runtime: with its few variables only.
    let script = format!(
        "#!/bin/sh\nexec env -i {} \"$@\"\n",
        env!("CARGO_BIN_EXE_v010-adapter")
    );
    let adapter = world.write_program("adapter", &script);
    world.write("answer", "{}");
    let list = format!(r#"{{"plugins": [{{"type": "{program}"}}]}}"#);
    let config = world.write("conf.json", &list);
    let flags = ["-idx", "10", "-config", &config];
    world.run(&adapter, &flags, &["10-v010-adapter"]).await;
    let reported = world.nri.run_pod_sandbox(pod(&[])).await;
    reported.expect("cat and dirname are found");
    assert!(world.read("asked").contains("pod0-id"));
}

#[tokio::test]
async fn a_program_exits_1_when_its_connection_is_lost() {
    let mut world = World::start().await;
    let program = env!("CARGO_BIN_EXE_rdt");
    // A runtime that ends sends Shutdown first; a proxy between can be cut.
    let (between, nri) = (world.path("between.sock"), world.path("nri.sock"));
    let listener = UnixListener::bind(&between).expect("a socket");
    let wire = tokio::spawn(async move {
        let (mut plugin, _) = listener.accept().await.expect("it connects");
        let mut runtime = UnixStream::connect(nri).await.expect("it listens");
        let _ = tokio::io::copy_bidirectional(&mut plugin, &mut runtime).await;
    });
    let flags = ["-idx", "10", "-socket-path", &between];
    world.run(program, &flags, &["10-rdt"]).await;
    wire.abort();
    assert_eq!(world.exit_code().await, Some(1));
}

#[tokio::test]
async fn a_program_exits_0_when_the_runtime_shuts_down() {
    let mut world = World::start().await;
    let program = env!("CARGO_BIN_EXE_rdt");
    world.run(program, &["-idx", "10"], &["10-rdt"]).await;
    world.nri.shutdown("the test ends").await;
    assert_eq!(world.exit_code().await, Some(0));
}
