//! The commands of crictl that `crictl.rs` and `streaming.rs` do not use; and a check that every
//! command is tested (CRI-610).

use std::collections::BTreeSet;

use cairn_tests::{
    Daemon,
    image::{Image, Layer},
    output::shown,
    registry::start as start_registry,
    until,
};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use crate::{
    crictl::{crictl, json},
    streaming,
};

/// Commands by the test that checks their output.
const STREAMS: &[&str] = &["attach", "port-forward"];
const PODS: &[&str] = &[
    "create",
    "exec",
    "imagefsinfo",
    "images",
    "info",
    "inspect",
    "inspecti",
    "inspectp",
    "logs",
    "pods",
    "ps",
    "rm",
    "rmi",
    "rmp",
    "run",
    "runp",
    "runtime-config",
    "start",
    "stop",
    "stopp",
    "update",
    "version",
];
const HERE: &[&str] = &[
    "checkpoint",
    "completion",
    "config",
    "events",
    "metricdescs",
    "metricsp",
    "pull",
    "stats",
    "statsp",
    "update-runtime-config",
];

#[tokio::test]
async fn no_command_of_crictl_is_without_a_test() {
    let daemon = Daemon::start().await;
    let help = crictl(&daemon, &["help"]).await;
    let commands = help.lines().skip_while(|l| *l != "COMMANDS:").skip(1);
    let commands: BTreeSet<&str> = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split([',', ' ']).find(|word| !word.is_empty()))
        .filter(|command| *command != "help")
        .collect();
    let tested: BTreeSet<&str> = [PODS, STREAMS, HERE].concat().into_iter().collect();
    assert_eq!(commands, tested);
}

#[tokio::test]
async fn crictl_measures_watches_and_configures() {
    let daemon = Daemon::start().await;
    let mut events = streaming::crictl(&daemon, &["events"])
        .spawn()
        .expect("crictl runs");
    let mut reported = events.stdout.take().expect("piped");
    let pod = daemon.cri().pod("watched").await;
    let container = pod.sleeper("c").await;

    // It receives only events after its subscription: the first event shows that it listens.
    let heard = async {
        let mut text = String::new();
        loop {
            let mut piece = vec![0; 65536];
            let n = reported.read(&mut piece).await.expect("its output");
            assert!(n > 0, "it ended: {text}");
            text += std::str::from_utf8(&piece[..n]).expect("text");
            // Documents of several lines; the last one may be incomplete.
            let mut events = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
            if let Some(Ok(event)) = events.next() {
                return event;
            }
        }
    };
    let heard = tokio::time::timeout(std::time::Duration::from_secs(60), heard);
    let again = async {
        loop {
            let config = pod.cri.container_config("other", &["true"]);
            let other = pod.try_create(config).await.expect("CreateContainer");
            other.remove().await.expect("RemoveContainer");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let event = tokio::select! {
        event = heard => event.expect("an event within a minute"),
        never = again => never,
    };
    let of_pod = &event["podSandboxStatus"]["id"];
    assert_eq!(of_pod, pod.id.as_str(), "{event}");
    events.kill().await.expect("crictl is killed");

    // A layer that was never counted is reported without its size at first.
    let stats = until("its layer is counted", || async {
        let asked = ["stats", "-s", "0", "-o", "json", "--id", &container.id];
        let stats = json(&daemon, &asked).await;
        let counted = !stats["stats"][0]["writableLayer"]["usedBytes"].is_null();
        counted.then_some(stats)
    })
    .await;
    let measured = &stats["stats"][0];
    assert_eq!(
        measured["attributes"]["id"],
        container.id.as_str(),
        "{stats}"
    );
    for path in [
        "/cpu/usageCoreNanoSeconds/value",
        "/memory/workingSetBytes/value",
        "/writableLayer/usedBytes/value",
    ] {
        let value = measured.pointer(path).and_then(Value::as_str);
        let value = value.and_then(|text| text.parse::<u64>().ok());
        assert!(value.is_some_and(|v| v > 0), "{path}: {measured}");
    }
    let stats = json(
        &daemon,
        &["statsp", "-s", "0", "-o", "json", "--id", &pod.id],
    )
    .await;
    let measured = &stats["stats"][0];
    assert_eq!(measured["attributes"]["id"], pod.id.as_str(), "{stats}");
    assert!(
        measured["linux"]["network"]["defaultInterface"]["name"] == "eth0",
        "{stats}"
    );
    let described = json(&daemon, &["metricdescs", "-o", "json"]).await;
    let described = described["descriptors"].as_array().expect("a list").clone();
    let names: BTreeSet<&str> = described
        .iter()
        .filter_map(|d| d["name"].as_str())
        .collect();
    assert!(
        names.contains("container_memory_working_set_bytes"),
        "{names:?}"
    );
    let metrics = json(&daemon, &["metricsp", "-o", "json"]).await;
    let of_pod = &metrics["podMetrics"][0];
    assert_eq!(of_pod["podSandboxId"], pod.id.as_str(), "{metrics}");
    let reported = of_pod["containerMetrics"][0]["metrics"]
        .as_array()
        .expect("a list");
    assert!(
        !reported.is_empty()
            && reported
                .iter()
                .all(|m| names.contains(m["name"].as_str().expect("a name")))
    );

    crictl(&daemon, &["update-runtime-config", "-p", "10.1.0.0/24"]).await;
    assert!(
        crictl(&daemon, &["completion", "bash"])
            .await
            .contains("crictl")
    );
    let file = daemon.path("crictl.yaml").display().to_string();
    std::fs::write(&file, "timeout: 2\n").expect("a file");
    let own = ["--config", &file, "config"];
    crictl(&daemon, &[&own[..], &["--set", "timeout=7"]].concat()).await;
    assert_eq!(
        crictl(&daemon, &[&own[..], &["--get", "timeout"]].concat()).await,
        "7"
    );

    let export = daemon.path("checkpoint.tar").display().to_string();
    let refused = daemon
        .crictl(&["checkpoint", "-e", &export, &container.id])
        .await;
    let printed = shown(&refused);
    assert!(!refused.status.success(), "{printed}");
    assert!(
        printed.contains("Unimplemented") && printed.contains("CRIU"),
        "{printed}"
    );
    pod.end().await;
}

#[tokio::test]
async fn crictl_pulls() {
    let daemon = Daemon::start().await;
    let host = "127.0.0.1:5000";
    let image = Image::bare("unused").layer(Layer::default().file("own", 0o644, b"pulled"));
    let registry = start_registry(
        &daemon.yard,
        host,
        vec![("pulled:1", image.blobs())],
        |_| None,
    );
    let reference = format!("{host}/pulled:1");
    let printed = crictl(&daemon, &["pull", &reference]).await;
    let id = printed.rsplit(' ').next().expect("an id").to_owned();
    assert!(id.starts_with("sha256:"), "{printed}");
    let inspected = json(&daemon, &["inspecti", &reference]).await;
    assert_eq!(inspected["status"]["id"], id.as_str(), "{inspected}");
    let missing = daemon.crictl(&["pull", &format!("{host}/none:1")]).await;
    let printed = shown(&missing);
    assert!(
        !missing.status.success() && printed.contains("NotFound"),
        "{printed}"
    );
    drop(registry);
}
