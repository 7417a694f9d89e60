//! `cairn serve --nri-record`: records the messages of plugins and daemon, and never delays them.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use cairn_tests::{Daemon, Setup, plugin::Plugin};
use nri::{adjust::Adjust as _, proto::ContainerAdjustment};
use serde_json::Value;

fn asked_for(file: &Path) -> Setup {
    Setup::default().toml(&format!("[nri]\nrecord = {file:?}\n"))
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).expect("a recording");
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("whole lines")
}

/// Runs a pod with a secret and a plugin that adds another, until the daemon's end.
async fn life(setup: Setup) {
    let mut daemon = Daemon::with(setup).await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "adjuster").await;
    plugin.adjusts(|_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.add_env("TOKEN", "s3cret-of-the-plugin");
        Some(adjust)
    });
    let pod = daemon.cri().pod("recorded").await;
    let mut config = pod.cri.container_config("c", &["true"]);
    config.envs.push(k8s_cri::v1::KeyValue {
        key: "PASSWORD".into(),
        value: "s3cret-of-the-pod".into(),
    });
    pod.try_create(config).await.expect("let through");
    pod.end().await;
    daemon.terminate().await;
}

#[tokio::test]
async fn what_plugins_and_the_daemon_say_is_on_file_without_values_of_variables() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("nri.jsonl");
    life(asked_for(&file)).await;
    let text = fs::read_to_string(&file).expect("a recording");
    assert!(!text.contains("s3cret"), "{text}");
    let mode = fs::metadata(&file).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let lines = lines(&file);
    assert_eq!(lines[0]["runtime"]["name"], "cairn");
    let method = |line: &&Value| line["method"] == "CreateContainer";
    let created: Vec<_> = lines.iter().filter(method).collect();
    assert_eq!(created[0]["is"], "request");
    let env = &created[0]["message"]["container"]["env"];
    let named = |name: &str| env.as_array().expect("a list").iter().any(|e| e == name);
    assert!(named("PASSWORD=<redacted>"), "{env}");
    let adjusted = &created[1]["message"]["adjust"]["env"][0];
    assert_eq!(
        (&adjusted["key"], &adjusted["value"]),
        (&"TOKEN".into(), &"<redacted>".into())
    );
    assert!(
        lines.iter().skip(1).any(|line| line["is"] == "closed"),
        "{text}"
    );
    assert_eq!(lines.last().expect("the end")["is"], "ended");
}

#[tokio::test]
async fn the_last_daemons_recording_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("nri.jsonl");
    life(asked_for(&file)).await;
    let last = fs::read_to_string(&file).expect("a recording");
    life(asked_for(&file)).await;
    let kept = fs::read_to_string(dir.path().join("nri.jsonl.1")).expect("the last recording");
    assert_eq!(kept, last);
    assert_ne!(fs::read_to_string(&file).expect("a recording"), last);
}

#[tokio::test]
async fn a_file_that_cannot_be_ours_ends_the_start_with_one_line_and_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (target, link) = (dir.path().join("target"), dir.path().join("link"));
    fs::write(&target, "precious").expect("a file");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    let mut daemon = Daemon::new(asked_for(&link)).await;
    let why = daemon.try_serve().await.expect_err("refused");
    assert!(
        why.contains("NRI: record") && why.contains("symlink"),
        "{why}"
    );
    assert_eq!(fs::read_to_string(&target).expect("text"), "precious");
}

/// A file system with space for a few lines.
#[tokio::test]
async fn a_full_disk_ends_the_recording_and_nothing_else() {
    let mut daemon = Daemon::new(Setup::default()).await;
    let small = daemon.path("small");
    fs::create_dir(&small).expect("a directory");
    let file = small.join("nri.jsonl");
    let (mount, name) = (small.display().to_string(), file.display().to_string());
    daemon
        .lines(&["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", &mount])
        .await;
    let toml = fs::read_to_string(daemon.path("cairn.toml")).expect("a configuration");
    assert!(toml.contains("[nri]\n"), "{toml}");
    let toml = toml.replace("[nri]\n", &format!("[nri]\nrecord = {name:?}\n"));
    fs::write(daemon.path("cairn.toml"), toml).expect("a configuration");
    daemon.serve().await;
    daemon
        .import(&cairn_tests::image::Image::busybox(
            cairn_tests::image::BUSYBOX,
        ))
        .await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "watcher").await;
    for n in 0..5 {
        let pod = daemon.cri().pod(&format!("pod-{n}")).await;
        pod.create("c", &["true"]).await;
        pod.end().await;
    }
    drop(plugin);
    let log = daemon.log();
    let reported = log.matches("the recording of NRI ends here").count();
    assert_eq!(reported, 1, "{log}");
    let text = daemon.lines(&["cat", &name]).await;
    for line in text {
        serde_json::from_str::<Value>(&line).expect("a whole line");
    }
    daemon.terminate().await;
}
