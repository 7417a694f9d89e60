//! Annotations, environment, arguments, limits, CDI devices.

use std::fs;

use cairn_tests::{bins, cri};
use nri::{
    adjust::{Adjust, HookKind},
    proto::Hook,
};

use super::stage::{Stage, sleeper};

/// An OCI hook gets the annotations.
pub(crate) async fn annotations_are_set_replaced_and_removed(stage: &Stage) {
    let out = stage.volume("state").join("state.json");
    let script = format!("cat > {}", out.display());
    let busybox = bins::system("busybox").expect("installed");
    stage.adjusts(move |_, adjust| {
        adjust
            .add_annotation("added", "yes")
            .set_annotation("io.kubernetes.cri.image-name", "another")
            .remove_annotation("io.kubernetes.cri.sandbox-name")
            .add_hook(
                HookKind::CreateRuntime,
                Hook {
                    path: busybox.display().to_string(),
                    args: ["sh", "-c", &script].map(String::from).into(),
                    ..Default::default()
                },
            );
    });
    let pod = stage.pod("annotated").await;
    let container = sleeper(&pod, "c").await;
    let state = fs::read_to_string(&out).expect("the hook ran");
    let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
    let reported = |key: &str| state["annotations"][key].as_str().map(str::to_owned);
    assert_eq!(reported("added").as_deref(), Some("yes"));
    assert_eq!(
        reported("io.kubernetes.cri.image-name").as_deref(),
        Some("another")
    );
    assert_eq!(reported("io.kubernetes.cri.sandbox-name"), None);
    assert_eq!(
        reported("io.kubernetes.cri.sandbox-namespace").as_deref(),
        Some("default"),
        "the others stay"
    );
    assert!(
        container.status().await.annotations.is_empty(),
        "the CRI's own are the kubelet's"
    );
    pod.end().await;
}

pub(crate) async fn variables_are_set_replaced_and_removed(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        adjust
            .add_env("NEW", "1")
            .set_env("CHANGED", "after")
            .remove_env("GONE")
            .remove_env("FROM_IMAGE");
    });
    let pod = stage.pod("env").await;
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    config.envs = [("CHANGED", "before"), ("GONE", "x"), ("KEPT", "k")]
        .map(|(key, value)| cri::KeyValue {
            key: key.into(),
            value: value.into(),
        })
        .into();
    let container = pod.try_create(config).await.expect("CreateContainer");
    container.start().await.expect("StartContainer");
    let init = container.sh("tr '\\0' '\\n' < /proc/1/environ").await;
    let exec = container.exec(&["env"]).await;
    for (of, env) in [("init", init), ("exec", exec)] {
        let env: Vec<&str> = env.lines().collect();
        for there in ["NEW=1", "CHANGED=after", "KEPT=k"] {
            assert!(env.contains(&there), "{there} in {of}: {env:?}");
        }
        let gone = |v: &&str| v.starts_with("GONE=") || v.starts_with("FROM_IMAGE=");
        assert!(!env.iter().any(gone), "{of}: {env:?}");
    }
    pod.end().await;
}

pub(crate) async fn arguments_are_replaced(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        adjust.set_args(["sleep", "2000"]);
    });
    let pod = stage.pod("args").await;
    let container = sleeper(&pod, "c").await;
    let line = container.sh("tr '\\0' ' ' < /proc/1/cmdline").await;
    assert!(line.contains("sleep 2000"), "{line}");
    pod.end().await;
}

pub(crate) async fn limits_of_resources_are_set_for_init_and_exec(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        adjust
            .add_rlimit("RLIMIT_NOFILE", 777, 555)
            .add_rlimit("core", 4096, 0)
            .add_rlimit("RLIMIT_STACK", 8 << 20, 4 << 20);
    });
    let pod = stage.pod("rlimits").await;
    let container = sleeper(&pod, "c").await;
    for of in ["1", "self"] {
        let limits = container
            .exec(&["cat", &format!("/proc/{of}/limits")])
            .await;
        for (name, soft, hard) in [
            ("Max open files", "555", "777"),
            ("Max core file size", "0", "4096"),
            ("Max stack size", "4194304", "8388608"),
        ] {
            let line = limits.lines().find_map(|l| l.strip_prefix(name));
            let mut words = line.expect("a line").split_whitespace();
            assert_eq!(
                (words.next(), words.next()),
                (Some(soft), Some(hard)),
                "{name} of {of}"
            );
        }
    }
    pod.end().await;
}

pub(crate) async fn the_oom_score_is_set_for_init_and_exec(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        adjust.oom_score_adj(321);
    });
    let pod = stage.pod("oom").await;
    let container = sleeper(&pod, "c").await;
    for of in ["1", "self"] {
        let file = format!("/proc/{of}/oom_score_adj");
        assert_eq!(container.exec(&["cat", &file]).await, "321", "{of}");
    }
    pod.end().await;
}

pub(crate) async fn a_cdi_device_comes_with_all_its_file_says(stage: &Stage) {
    let gift = stage.volume("gift");
    fs::write(gift.join("file"), "from the vendor").expect("a file");
    // In the yard's own /run: the machine's must not change.
    stage
        .machine(&["mount", "-t", "tmpfs", "tmpfs", "/run"])
        .await;
    let dir = stage.daemon.yard.inside("/run/cdi");
    fs::create_dir_all(&dir).expect("a directory");
    let file = serde_json::json!({
        "cdiVersion": "0.6.0",
        "kind": "vendor.com/thing",
        "devices": [{"name": "one", "containerEdits": {
            "env": ["THING=one"],
            "deviceNodes": [{"path": "/dev/thing", "hostPath": "/dev/null"}],
            "mounts": [{"hostPath": gift, "containerPath": "/thing", "options": ["ro", "rbind"]}],
        }}],
    });
    fs::write(dir.join("vendor.json"), file.to_string()).expect("a file");
    fs::write(dir.join("broken.json"), "{\"cdiVersion\": ").expect("a file");
    stage.adjusts(|_, adjust| {
        adjust.add_cdi_device("vendor.com/thing=one");
    });
    let pod = stage.pod("cdi").await;
    let container = sleeper(&pod, "c").await;
    assert_eq!(container.sh("echo $THING").await, "one");
    let log = stage.daemon.log();
    assert!(log.contains("CDI file /var/run/cdi/broken.json"), "{log}");
    assert_eq!(
        container.exec(&["cat", "/thing/file"]).await,
        "from the vendor"
    );
    container
        .sh("test -c /dev/thing && echo x > /dev/thing")
        .await;
    let mut unknown = nri::proto::ContainerAdjustment::default();
    unknown.add_cdi_device("vendor.com/thing=two");
    stage
        .refuses(&pod, "adjust.cdi_devices (set by", unknown)
        .await;
    pod.end().await;
}
