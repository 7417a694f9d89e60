//! What runs programs of its own: hook-injector with OCI hooks, v010-adapter with plugins of NRI 0.1.

use std::{fs, os::unix::fs::PermissionsExt};

use cairn_tests::{Daemon, Setup, bins, until};
use serde_json::{Value, json};

use super::{
    CONNECTED, LAUNCHED, active, annotated, connect, cover, read, refused, serve, tells, write,
};

const HOOKS: &str = "/etc/containers/oci/hooks.d";

/// A hook file: appends this word to `/run/fired` where the pod's annotation `hook` has this value.
fn hook(word: &str, wanted: &str) -> String {
    let script = format!("cat >>/run/states; echo {word} >>/run/fired");
    json!({
        "version": "1.0.0",
        "hook": { "path": bins::system("busybox"), "args": ["sh", "-c", script] },
        "when": { "annotations": { "^hook$": format!("^{wanted}$") } },
        "stages": ["createRuntime"],
    })
    .to_string()
}

/// What hooks have written since the last time, by a container of a pod with this annotation.
async fn fired(daemon: &Daemon, name: &str, wanted: &str) -> String {
    write(daemon, "/run/fired", "");
    let cri = daemon.cri();
    let pod = cri
        .try_pod(annotated(&cri, name, &[("hook", wanted)]))
        .await;
    let pod = pod.expect("a pod");
    pod.run("c", &["true"]).await.exited().await;
    pod.end().await;
    read(daemon, "/run/fired")
}

#[tokio::test]
async fn the_hook_injector_lets_hooks_of_its_directories_fire_also_new_ones() {
    let setup = Setup::default().plugin("10-hook-injector", bins::built("hook-injector"));
    let mut daemon = Daemon::new(setup).await;
    cover(&daemon, "/etc").await;
    write(
        &daemon,
        &format!("{HOOKS}/one.json"),
        &hook("one", "wanted"),
    );
    serve(&mut daemon).await;
    active(&daemon, "10-hook-injector", LAUNCHED).await;

    assert_eq!(fired(&daemon, "first", "wanted").await, "one\n");
    let state: Value = serde_json::from_str(&read(&daemon, "/run/states")).expect("a state");
    assert_eq!(state["status"], "creating");
    assert_eq!(
        fired(&daemon, "second", "other").await,
        "",
        "its condition does not hold"
    );

    write(
        &daemon,
        &format!("{HOOKS}/two.json"),
        &hook("two", "wanted"),
    );
    assert_eq!(
        fired(&daemon, "third", "wanted").await,
        "one\ntwo\n",
        "a new file"
    );
    write(
        &daemon,
        &format!("{HOOKS}/one.json"),
        &hook("changed", "wanted"),
    );
    assert_eq!(fired(&daemon, "fourth", "wanted").await, "changed\ntwo\n");
    fs::remove_file(daemon.yard.inside(format!("{HOOKS}/one.json"))).expect("it is there");
    assert_eq!(fired(&daemon, "fifth", "wanted").await, "two\n");

    write(&daemon, &format!("{HOOKS}/bad.json"), "{");
    let error = refused(&daemon.cri(), "sixth", &[]).await;
    tells(&error, &["10-hook-injector", "bad.json"]);
}

#[tokio::test]
async fn the_hook_injector_reads_the_directories_of_its_flags_once_if_told_so() {
    let mut daemon = Daemon::start().await;
    write(&daemon, "/run/low/h.json", &hook("low", "wanted"));
    write(&daemon, "/run/high/h.json", &hook("high", "wanted"));
    let flags = [
        "-idx",
        "20",
        "-hooks-dir",
        "/run/low",
        "-hooks-dir",
        "/run/high",
        "-disableWatch",
    ];
    connect(&mut daemon, "hook-injector", &flags, &["20-hook-injector"]).await;
    assert_eq!(
        fired(&daemon, "first", "wanted").await,
        "high\n",
        "the later directory wins"
    );
    write(&daemon, "/run/high/new.json", &hook("new", "wanted"));
    write(&daemon, "/run/low/bad.json", "{");
    assert_eq!(
        fired(&daemon, "second", "wanted").await,
        "high\n",
        "as at its start"
    );
    active(&daemon, "20-hook-injector", CONNECTED).await;
}

/// A plugin of NRI 0.1: keeps what it is asked, and answers what it finds in a file.
const OLD: &str =
    "#!/bin/sh\n[ \"$1\" = invoke ] || exit 3\n{ cat; echo; } >>/run/asked\ncat /run/answer\n";
const CONTENT: &str = r#"{"plugin": "old", "version": "0.1", "error": "", "metadata": {"m": "1"}}"#;

/// What the old plugin was asked so far.
fn asked(daemon: &Daemon) -> Vec<Value> {
    let text = read(daemon, "/run/asked");
    let all = text.lines().map(serde_json::from_str);
    all.collect::<Result<_, _>>()
        .unwrap_or_else(|e| panic!("{e}: {text}"))
}

async fn adapting() -> Daemon {
    let setup = Setup::default().plugin("10-v010-adapter", bins::built("v010-adapter"));
    let mut daemon = Daemon::new(setup).await;
    cover(&daemon, "/etc").await;
    cover(&daemon, "/opt").await;
    write(&daemon, "/opt/nri/bin/old", OLD);
    let program = daemon.yard.inside("/opt/nri/bin/old");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let conf =
        r#"{"version": "0.1", "plugins": [{"type": "old", "conf": {"k": 1}}, {"type": "old"}]}"#;
    write(&daemon, "/etc/nri/conf.json", conf);
    write(&daemon, "/run/answer", CONTENT);
    serve(&mut daemon).await;
    active(&daemon, "10-v010-adapter", LAUNCHED).await;
    daemon
}

#[tokio::test]
async fn the_v010_adapter_invokes_old_plugins_at_create_and_delete() {
    let daemon = adapting().await;
    let cri = daemon.cri();
    let pod = cri.pod("old").await;
    let mut config = cri.container_config("c", &["sleep", "1000"]);
    config
        .annotations
        .insert("mark".to_owned(), "of c".to_owned());
    config.linux.get_or_insert_default().resources =
        Some(cairn_tests::cri::LinuxContainerResources {
            memory_limit_in_bytes: 64 << 20,
            ..Default::default()
        });
    let container = pod.try_create(config).await.expect("a container");
    container.start().await.expect("StartContainer");
    let pid = container.pid().await;
    container
        .stop(std::time::Duration::ZERO)
        .await
        .expect("StopContainer");
    pod.end().await;

    let asked = asked(&daemon);
    let (pod_id, id) = (pod.id.as_str(), container.id.as_str());
    let seen: Vec<_> = asked
        .iter()
        .map(|a| (a["state"].as_str(), a["id"].as_str()))
        .collect();
    let once = [
        ("create", pod_id),
        ("create", id),
        ("delete", id),
        ("delete", pod_id),
    ];
    let expected: Vec<_> = once
        .iter()
        .flat_map(|(s, i)| [(Some(*s), Some(*i)); 2])
        .collect();
    assert_eq!(
        seen, expected,
        "twice each: the configuration names it twice"
    );
    for all in &asked {
        assert_eq!(
            (&all["version"], &all["sandboxID"]),
            (&json!("0.1"), &json!(pod_id))
        );
        assert_eq!(all["labels"]["app"], "old");
    }
    assert_eq!(asked[0]["conf"]["k"], 1);
    assert_eq!(asked[1].get("conf"), None);
    assert_eq!(asked[0].get("results"), None);
    assert_eq!(asked[1]["results"][0]["metadata"]["m"], "1");

    let network = asked[0]["spec"]["namespaces"]["network"].as_str();
    assert!(
        network.is_some_and(|path| path.starts_with('/')),
        "{}",
        asked[0]
    );
    assert_eq!(asked[0]["spec"]["annotations"]["note"], "of old");
    let start = &asked[2];
    assert_eq!(start["pid"].as_u64(), pid.map(u64::from));
    assert_eq!(start["spec"]["resources"]["memory"]["limit"], 64 << 20);
    assert_eq!(start["spec"]["annotations"]["mark"], "of c");
    let path = start["spec"]["cgroupsPath"].as_str().unwrap_or_default();
    assert!(
        path.starts_with(daemon.cgroup_parent()) && path.contains(id),
        "{start}"
    );
}

#[tokio::test]
async fn the_v010_adapter_vetoes_what_an_old_plugin_refuses_but_never_a_teardown() {
    let daemon = adapting().await;
    let cri = daemon.cri();
    let refusal = r#"{"plugin": "old", "version": "0.1", "error": "no room"}"#;
    write(&daemon, "/run/answer", refusal);
    let error = cri.try_pod(cri.pod_config("refused")).await;
    let error = error.expect_err("a veto");
    tells(&error, &["10-v010-adapter", "old", "no room"]);
    assert!(cri.pods().await.is_empty());

    write(&daemon, "/run/answer", CONTENT);
    let pod = cri.pod("fine").await;
    let sleeper = pod.sleeper("stays").await;
    let never = pod.create("never", &["true"]).await;
    write(&daemon, "/run/answer", "junk");
    let error = never.start().await.expect_err("no answer");
    tells(&error, &["10-v010-adapter", "its answer is not a result"]);
    let before = asked(&daemon).len();
    write(&daemon, "/run/answer", refusal);
    sleeper
        .remove()
        .await
        .expect("a refusal prevents no teardown");
    pod.end().await;
    until("it was asked all the same", || async {
        (asked(&daemon).len() > before).then_some(())
    })
    .await;
}
