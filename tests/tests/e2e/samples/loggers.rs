//! What looks and tells: logger, differ, network-logger, template.

use std::{fs, time::Duration};

use cairn_tests::{
    Daemon, Setup, bins,
    container::Container,
    pod::{Pod, host_network},
    until,
};
use serde_json::Value;

use super::{LAUNCHED, active, connect, read};

/// Every event of a life, as plugins are told them.
const LIFE: [&str; 14] = [
    "RunPodSandbox",
    "CreateContainer",
    "ValidateContainerAdjustment",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "UpdateContainer",
    "PostUpdateContainer",
    "UpdatePodSandbox",
    "PostUpdatePodSandbox",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
];

/// Updates both, then ends them one by one.
async fn live(pod: &Pod, container: &Container) {
    let updated = container.limit_memory(64 << 20).await;
    updated.expect("UpdateContainerResources");
    let updated = pod.share_cpu(300).await;
    updated.expect("UpdatePodSandboxResources");
    container
        .stop(Duration::from_secs(5))
        .await
        .expect("StopContainer");
    container.remove().await.expect("RemoveContainer");
    pod.end().await;
}

/// The first words of the lines, each once for all lines that follow each other.
fn events(text: &str) -> Vec<&str> {
    let mut all: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split([':', ' ']).next())
        .collect();
    all.dedup();
    all
}

/// An annotation of the container's spec, as the verbose status shows it.
async fn annotation(container: &Container, key: &str) -> String {
    let status = container.try_status().await.expect("ContainerStatus");
    let info: Value = serde_json::from_str(&status.info["info"]).expect("JSON");
    let value = info["runtimeSpec"]["annotations"][key].as_str();
    value
        .unwrap_or_else(|| panic!("no {key}: {info}"))
        .to_owned()
}

#[tokio::test]
async fn a_launched_logger_dumps_every_event_of_a_life_and_marks_the_container() {
    let conf = "logFile: /run/logger.log\naddEnv: SEEN_BY\nsetAnnotation: seen.by\n";
    let setup = Setup::default().plugin_with("99-logger", bins::built("logger"), conf);
    let daemon = Daemon::with(setup).await;
    active(&daemon, "99-logger", LAUNCHED).await;
    let cri = daemon.cri();
    let pod = cri.pod("logged").await;
    let container = pod.sleeper("c").await;
    let mark = container.sh("echo $SEEN_BY").await;
    let pid = mark.strip_prefix("logger-pid-").expect("its mark");
    assert_eq!(read(&daemon, &format!("/proc/{pid}/comm")), "99-logger\n");
    assert_eq!(annotation(&container, "seen.by").await, mark);
    let first = container.pid().await.expect("it runs");
    live(&pod, &container).await;

    let text = read(&daemon, "/run/logger.log");
    assert_eq!(events(&text), LIFE, "{text}");
    for line in [
        "RunPodSandbox:   name: logged".to_owned(),
        format!("CreateContainer:   id: {}", container.id),
        format!("StartContainer:   pid: {first}"),
        "UpdateContainer:       value: 67108864".to_owned(),
        "StopPodSandbox:   namespace: default".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?}: {text}");
    }
}

#[tokio::test]
async fn connected_loggers_print_the_events_of_their_flags_and_override_marks() {
    let mut daemon = Daemon::start().await;
    let flags = [
        "-idx",
        "10",
        "-events-only",
        "-events",
        "pod",
        "-log-file",
        "/run/pods",
    ];
    connect(&mut daemon, "logger", &flags, &["10-logger"]).await;
    let flags = [
        "-idx",
        "20",
        "-add-env",
        "SEEN_BY",
        "-add-annotation",
        "seen.by",
    ];
    connect(&mut daemon, "logger", &flags, &["20-logger"]).await;
    let flags = [
        "-idx",
        "30",
        "-name",
        "last",
        "-set-env",
        "SEEN_BY",
        "-set-annotation",
        "seen.by",
    ];
    let last = connect(&mut daemon, "logger", &flags, &["30-last"]).await;
    let cri = daemon.cri();
    let pod = cri.pod("marked").await;
    let container = pod.sleeper("c").await;
    let mark = format!("logger-pid-{}", last.pid);
    assert_eq!(
        container.sh("env | grep SEEN_BY").await,
        format!("SEEN_BY={mark}")
    );
    assert_eq!(annotation(&container, "seen.by").await, mark);
    live(&pod, &container).await;
    let lines = read(&daemon, "/run/pods");
    let only: Vec<&str> = lines
        .lines()
        .filter(|l| !l.starts_with("Synchronize"))
        .collect();
    let pods = LIFE.iter().filter(|event| event.contains("Pod"));
    let expected: Vec<String> = pods.map(|event| format!("{event} marked")).collect();
    assert_eq!(only, expected);
    last.says("RemoveContainer:   name: c").await;
}

#[tokio::test]
async fn the_differ_tells_what_a_plugin_between_its_indices_changed_and_no_more() {
    let mut daemon = Daemon::start().await;
    let flags = ["-indices", "5,90", "-log-file", "/run/changes"];
    connect(&mut daemon, "differ", &flags, &["05-differ", "90-differ"]).await;
    let flags = [
        "-idx",
        "50",
        "-env",
        "BETWEEN=1",
        "-annotation",
        "between=1",
        "-rlimit",
        "nofile=512:1024",
    ];
    connect(&mut daemon, "demo-adjuster", &flags, &["50-demo-adjuster"]).await;
    let flags = ["-idx", "95", "-env", "BEYOND=1"];
    connect(&mut daemon, "demo-adjuster", &flags, &["95-demo-adjuster"]).await;
    let cri = daemon.cri();
    let pod = cri.pod("compared").await;
    let container = pod.sleeper("c").await;
    assert_eq!(
        container.sh("echo $BETWEEN $BEYOND; ulimit -n").await,
        "1 1\n512"
    );
    pod.end().await;

    let text = read(&daemon, "/run/changes");
    let line = format!("differ: RunPodSandbox {}: 05..90: no changes", pod.id);
    assert!(text.lines().any(|l| l == line), "{line:?}: {text}");
    let about = format!(
        "differ: CreateContainer {} {}: 05..90: ",
        pod.id, container.id
    );
    let told: Vec<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix(&about))
        .collect();
    for change in [
        "container.annotations.between: nothing -> \"1\"",
        "nothing -> \"BETWEEN=1\"",
        "container.rlimits",
    ] {
        assert!(
            told.iter().any(|l| l.contains(change)),
            "{change:?}: {told:?}"
        );
    }
    assert!(!told.iter().any(|l| l.contains("BEYOND")), "{told:?}");
    assert!(text.contains("RemovePodSandbox"), "{text}");
}

#[tokio::test]
async fn the_network_logger_tells_of_every_network_until_the_daemon_says_goodbye() {
    let mut daemon = Daemon::start().await;
    let cri = daemon.cri();
    let before = cri.pod("before").await;
    let flags = ["-idx", "10", "-log-file", "/run/networks"];
    connect(
        &mut daemon,
        "network-logger",
        &flags,
        &["10-network-logger"],
    )
    .await;
    let mut config = cri.pod_config("hosted");
    host_network(&mut config);
    let hosted = cri.try_pod(config).await.expect("a pod");
    let ip = before.ip().await;
    hosted.end().await;
    before.end().await;
    daemon.terminate().await;
    until("it is told goodbye", || async {
        read(&daemon, "/run/networks")
            .contains("Shutdown: ")
            .then_some(())
    })
    .await;

    let text = read(&daemon, "/run/networks");
    let lines: Vec<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix("network-logger: "))
        .collect();
    let first = lines
        .first()
        .and_then(|l| l.strip_prefix("Synchronize: default/before: /"));
    let path = first.and_then(|l| l.strip_suffix(&format!(", addresses {ip}")));
    let path = path.unwrap_or_else(|| panic!("{text}"));
    let host = "network of the host, no address";
    let expected = [
        format!("RunPodSandbox: default/hosted: {host}"),
        format!("StopPodSandbox: default/hosted: {host}"),
        "RemovePodSandbox: default/hosted: network gone, no address".to_owned(),
        format!("StopPodSandbox: default/before: /{path}, addresses {ip}"),
        "RemovePodSandbox: default/before: network gone, no address".to_owned(),
    ];
    assert_eq!(lines[1..6], expected);
    assert!(lines[6].starts_with("Shutdown: "), "{text}");
}

#[tokio::test]
async fn the_template_takes_a_configuration_and_says_every_event() {
    // A launched plugin has no standard error; a script gives it one.
    let script = format!(
        "#!/bin/sh\nexec {} 2>>/run/template\n",
        bins::built("template").display()
    );
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("script");
    fs::write(&file, script).expect("a file");
    let setup = Setup::default().plugin_with("10-template", &file, "cfgParam1: hello\n");
    let daemon = Daemon::with(setup).await;
    active(&daemon, "10-template", LAUNCHED).await;
    let cri = daemon.cri();
    let pod = cri.pod("said").await;
    let container = pod.sleeper("c").await;
    live(&pod, &container).await;
    let text = read(&daemon, "/run/template");
    let lines: Vec<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix("template: "))
        .collect();
    assert!(lines[0].starts_with("configured by cairn"), "{text}");
    assert!(lines[0].ends_with("cfgParam1 = \"hello\""), "{text}");
    assert_eq!(lines[1], "0 pods, 0 containers");
    let said: Vec<&str> = lines[2..]
        .iter()
        .filter_map(|l| l.split(' ').next())
        .collect();
    assert_eq!(said, LIFE);
}
