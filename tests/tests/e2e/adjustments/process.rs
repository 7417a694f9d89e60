//! Annotations, environment, arguments, limits, CDI devices.

use std::fs;

use cairn_tests::bins;
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
    pod.end().await;
}
