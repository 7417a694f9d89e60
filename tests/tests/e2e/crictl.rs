//! crictl in common use, and the RPCs that only newer clients know.

use std::time::Duration;

use cairn_tests::{
    Daemon, Setup, bins,
    image::BUSYBOX,
    output::{shown, stdout},
    until,
};
use proto_cri::v1 as newer;

/// Runs crictl, which must succeed; returns its trimmed standard output.
pub(crate) async fn crictl(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.crictl(args).await;
    assert!(
        output.status.success(),
        "crictl {args:?}: {}",
        shown(&output)
    );
    stdout(&output).trim().to_owned()
}

/// As [`crictl`], parsed as JSON.
pub(crate) async fn json(daemon: &Daemon, args: &[&str]) -> serde_json::Value {
    let printed = crictl(daemon, args).await;
    serde_json::from_str(&printed).unwrap_or_else(|e| panic!("crictl {args:?}: {e}: {printed}"))
}

/// Returns the state of the single listed container.
async fn state(daemon: &Daemon, list: &[&str], id: &str) -> String {
    let listed = json(daemon, &[list, &["-o", "json"]].concat()).await;
    let all = listed["containers"].as_array().expect("a list");
    assert!(all.len() == 1 && all[0]["id"] == id, "{listed}");
    all[0]["state"].as_str().expect("a state").to_owned()
}

#[tokio::test]
async fn crictl_runs_looks_at_and_removes_a_pod() {
    let daemon = Daemon::start().await;
    let file = |name: &str, text: String| {
        let path = daemon.path(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let logs = daemon.path("logs").display().to_string();
    let pod_json = file(
        "pod.json",
        serde_json::json!({
            "metadata": { "name": "hello", "namespace": "default", "uid": "u", "attempt": 0 },
            "hostname": "hello", "log_directory": logs,
            "linux": { "cgroup_parent": daemon.cgroup_parent() },
        })
        .to_string(),
    );
    let container_json = file(
        "container.json",
        serde_json::json!({
            "metadata": { "name": "greeter", "attempt": 0 },
            "image": { "image": BUSYBOX },
            "command": ["sh", "-c", "echo hello from $(hostname); trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"],
            "log_path": "greeter.log",
        })
        .to_string(),
    );
    let version = crictl(&daemon, &["version"]).await;
    assert!(
        version.lines().any(|l| l == "RuntimeName:  cairn"),
        "{version}"
    );
    let info = json(&daemon, &["info"]).await;
    let ready = |kind: &str| {
        let all = info["status"]["conditions"].as_array().expect("a list");
        let of_kind = all.iter().find(|c| c["type"] == kind);
        of_kind.map(|condition| condition["status"].clone())
    };
    assert_eq!(ready("RuntimeReady"), Some(true.into()), "{info}");
    assert_eq!(ready("NetworkReady"), Some(true.into()), "{info}");
    let config = crictl(&daemon, &["runtime-config"]).await;
    let driver = config
        .lines()
        .find_map(|l| l.strip_prefix("cgroup driver:"));
    assert_eq!(driver.map(str::trim), Some("CGROUPFS"), "{config}");
    let images = json(&daemon, &["images", "-o", "json"]).await;
    let image = &images["images"][0];
    assert_eq!(image["repoTags"], serde_json::json!([BUSYBOX]), "{images}");
    let inspected = json(&daemon, &["inspecti", BUSYBOX]).await;
    assert_eq!(inspected["status"]["id"], image["id"], "{inspected}");
    let filesystems = json(&daemon, &["imagefsinfo"]).await;
    let mountpoint = &filesystems["status"]["imageFilesystems"][0]["fsId"]["mountpoint"];
    let root = daemon.path("root").display().to_string();
    let of_root = mountpoint.as_str().is_some_and(|at| at.starts_with(&root));
    assert!(of_root, "{filesystems}");
    let pod = crictl(&daemon, &["runp", &pod_json]).await;
    let pods = json(&daemon, &["pods", "-o", "json"]).await;
    let listed = &pods["items"][0];
    assert_eq!(
        (&listed["id"], &listed["state"]),
        (&pod.clone().into(), &"SANDBOX_READY".into()),
        "{pods}"
    );
    let inspected = json(&daemon, &["inspectp", &pod]).await;
    let address = inspected["status"]["network"]["ip"]
        .as_str()
        .unwrap_or_default();
    assert!(address.starts_with("10.88.0."), "{inspected}");
    let container = crictl(&daemon, &["create", &pod, &container_json, &pod_json]).await;
    crictl(&daemon, &["start", &container]).await;
    assert_eq!(
        state(&daemon, &["ps"], &container).await,
        "CONTAINER_RUNNING"
    );
    let inspected = json(&daemon, &["inspect", &container]).await;
    assert_eq!(
        inspected["status"]["state"], "CONTAINER_RUNNING",
        "{inspected}"
    );
    until("crictl logs", || async {
        (crictl(&daemon, &["logs", &container]).await == "hello from hello").then_some(())
    })
    .await;
    assert_eq!(
        crictl(&daemon, &["exec", "-s", &container, "hostname"]).await,
        "hello"
    );
    crictl(&daemon, &["update", "--memory", "67108864", &container]).await;
    crictl(&daemon, &["stop", "-t", "5", &container]).await;
    assert_eq!(
        state(&daemon, &["ps", "-a"], &container).await,
        "CONTAINER_EXITED"
    );
    crictl(&daemon, &["rm", &container]).await;
    crictl(&daemon, &["stopp", &pod]).await;
    crictl(&daemon, &["rmp", &pod]).await;
    crictl(&daemon, &["run", "--no-pull", &container_json, &pod_json]).await;
    crictl(&daemon, &["rmp", "-f", "-a"]).await;
    crictl(&daemon, &["rmi", BUSYBOX]).await;
    assert!(daemon.cri().pods().await.is_empty());
}

#[tokio::test]
async fn crictl_follows_a_log_while_it_is_written() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("follow").await;
    let script = "i=0; while [ $i -lt 20 ]; do echo line $i; i=$((i+1)); sleep 0.05; done";
    let container = pod.run("c", &["sh", "-c", script]).await;
    // Ends when the container has exited.
    let printed = crictl(&daemon, &["logs", "-f", &container.id]).await;
    let expected: Vec<String> = (0..20).map(|i| format!("line {i}")).collect();
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    pod.end().await;
}

#[tokio::test]
async fn a_stop_signal_of_the_config_comes_before_the_images() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("signal").await;
    let script =
        "trap 'echo got INT; exit 9' INT; echo ready; while :; do sleep 1000 & wait $!; done";
    let mut config = pod.cri.newer_config("c", &["sh", "-c", script]);
    config.stop_signal = newer::Signal::Sigint.into();
    let container = pod.try_create_newer(config).await.expect("CreateContainer");
    container.start().await.expect("StartContainer");
    container.says("ready").await;
    container
        .stop(Duration::from_secs(10))
        .await
        .expect("StopContainer");
    assert_eq!(container.status().await.exit_code, 9);
    let request = newer::ContainerStatusRequest {
        container_id: container.id.clone(),
        verbose: false,
    };
    let status = pod.cri.client.newer.clone().container_status(request).await;
    let status = status.expect("ContainerStatus").into_inner();
    assert_eq!(
        status.status.expect("a status").stop_signal(),
        newer::Signal::Sigint
    );
    pod.end().await;
}

#[tokio::test]
async fn what_is_not_served_says_so() {
    let daemon = Daemon::start().await;
    let mut client = daemon.cri().client.newer;
    let checkpoint = client
        .checkpoint_pod(newer::CheckpointPodRequest::default())
        .await;
    let error = checkpoint.expect_err("no checkpoints");
    assert_eq!(error.code(), tonic::Code::Unimplemented, "{error}");
    assert!(error.message().contains("CheckpointPod"), "{error}");
}

#[tokio::test]
async fn the_commands_of_cairn_explain_themselves_and_fail_in_one_line() {
    let daemon = Daemon::with(Setup::default()).await;
    let run = |args: &[&str]| {
        std::process::Command::new(bins::cairn())
            .args(args)
            .output()
            .expect("cairn runs")
    };
    let default = run(&["config", "default"]);
    assert!(default.status.success());
    let file = daemon.path("default.toml");
    std::fs::write(&file, &default.stdout).expect("a file");
    let checked = run(&["config", "check", &file.display().to_string()]);
    assert!(checked.status.success(), "{}", shown(&checked));
    std::fs::write(&file, "version = 1\nspeed = \"fast\"\n").expect("a file");
    let checked = run(&["config", "check", &file.display().to_string()]);
    let printed = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(
        !checked.status.success() && printed.contains("speed") && printed.lines().count() == 1,
        "{printed}"
    );
    let nobody = run(&["timeline", "--connect", "unix:///no/such/socket"]);
    let printed = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(
        !nobody.status.success()
            && printed.contains("/no/such/socket")
            && printed.lines().count() == 1,
        "{printed}"
    );
}

#[tokio::test]
async fn a_timeline_of_nothing_fails_and_a_container_has_one_by_id_and_by_name() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("drawn").await;
    let container = pod.run("app", &["sh", "-c", "exit 4"]).await;
    container.exited().await;
    let nobody = daemon.cairn(&["timeline", "nosuch"]).await;
    let printed = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(
        !nobody.status.success() && printed.contains("nosuch") && printed.lines().count() == 1,
        "{printed}"
    );
    assert!(nobody.stdout.is_empty(), "{}", shown(&nobody));
    for name in [container.id.as_str(), &container.id[..13], "app"] {
        let drawn = daemon.cairn(&["timeline", name]).await;
        assert!(drawn.status.success(), "{name}: {}", shown(&drawn));
        let text = stdout(&drawn);
        assert!(
            text.contains("CreateContainer app") && text.contains("exited 4"),
            "{text}"
        );
        assert!(
            !text.contains("RunPodSandbox"),
            "only the container's: {text}"
        );
    }
    pod.end().await;
    let drawn = daemon.cairn(&["timeline", "drawn"]).await;
    assert!(drawn.status.success(), "{}", shown(&drawn));
    let text = stdout(&drawn);
    for call in ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"] {
        assert!(text.contains(call), "{call}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "no colour but on a terminal");
}

#[tokio::test]
async fn the_commands_find_the_daemon_where_crictl_does() {
    let daemon = Daemon::start().await;
    let socket = daemon.socket().display().to_string();
    let run = |endpoint: &str| {
        std::process::Command::new(bins::cairn())
            .args(["plugins", "--output", "json"])
            .env("CONTAINER_RUNTIME_ENDPOINT", endpoint)
            .output()
            .expect("cairn runs")
    };
    for endpoint in [format!("unix://{socket}"), socket] {
        let listed = run(&endpoint);
        assert!(listed.status.success(), "{}", shown(&listed));
    }
    let wrong = run("tcp://127.0.0.1:1");
    let printed = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        !wrong.status.success() && printed.contains("CONTAINER_RUNTIME_ENDPOINT"),
        "{printed}"
    );
}
