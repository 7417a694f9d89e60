//! Device nodes and their rules.
//!
//! Major number 240 is for local use and has no driver. Opening such a node fails with "no such
//! device" if the rules allow it, and with "not permitted" if they do not.

use cairn_tests::cri;
use nri::{
    adjust::Adjust,
    proto::{LinuxDevice, LinuxDeviceCgroup, OptionalFileMode, OptionalInt64, OptionalUInt32},
};

use super::stage::{Stage, bind, fails, resources, sleeper};

const PASSED: &str = "No such device or address";
const DENIED: &str = "Operation not permitted";

fn device(path: &str, kind: &str, numbers: (i64, i64), mode: u32) -> LinuxDevice {
    LinuxDevice {
        path: path.to_owned(),
        r#type: kind.to_owned(),
        major: numbers.0,
        minor: numbers.1,
        file_mode: Some(OptionalFileMode { value: mode }),
        uid: Some(OptionalUInt32 { value: 1000 }),
        gid: Some(OptionalUInt32 { value: 2000 }),
    }
}

pub(crate) async fn devices_are_made_with_their_mode_and_owner_and_can_be_used(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        adjust
            .add_device(device("/dev/char", "c", (1, 3), 0o640))
            .add_device(device("/dev/ours/local", "c", (240, 7), 0o600))
            .add_device(device("/dev/block", "b", (240, 8), 0o604))
            .add_device(device("/dev/fifo", "p", (0, 0), 0o622))
            // Replaces a node that every container has.
            .set_device(device("/dev/full", "c", (1, 5), 0o666));
    });
    let pod = stage.pod("devices").await;
    let container = sleeper(&pod, "c").await;
    let format = "%a %u %g %t:%T %F";
    for (path, expected) in [
        ("/dev/char", "640 1000 2000 1:3 character special file"),
        (
            "/dev/ours/local",
            "600 1000 2000 f0:7 character special file",
        ),
        ("/dev/block", "604 1000 2000 f0:8 block special file"),
        ("/dev/fifo", "622 1000 2000 0:0 fifo"),
        ("/dev/full", "666 1000 2000 1:5 character special file"),
    ] {
        let seen = container.exec(&["stat", "-c", format, path]).await;
        assert_eq!(seen, expected, "{path}");
    }
    container.sh("echo x > /dev/char").await;
    container
        .sh("test $(head -c 3 /dev/full | wc -c) = 3 && echo x > /dev/full")
        .await;
    for path in ["/dev/ours/local", "/dev/block"] {
        let printed = fails(&container, &format!("cat {path}")).await;
        assert!(printed.contains(PASSED), "{path}: {printed}");
    }
    container.sh("echo x > /dev/fifo & cat /dev/fifo").await;
    pod.end().await;
}

pub(crate) async fn a_device_is_removed_together_with_its_rule(stage: &Stage) {
    let nodes = stage.volume("nodes");
    let node = nodes.join("local").display().to_string();
    stage.machine(&["mknod", &node, "c", "240", "9"]).await;
    stage.adjusts(|name, adjust| {
        if name == "without" {
            adjust.remove_device("/dev/local");
        }
    });
    let pod = stage.pod("removed").await;
    for (name, there, says) in [("with", "0", PASSED), ("without", "1", DENIED)] {
        let mut config = pod.cri.container_config(name, &["sleep", "1000"]);
        config.devices = vec![cri::Device {
            container_path: "/dev/local".into(),
            host_path: node.clone(),
            permissions: "rwm".into(),
        }];
        config.mounts = vec![bind(&nodes, "/nodes")];
        let container = pod.started(config).await;
        let seen = container.sh("test -e /dev/local; echo $?").await;
        assert_eq!(seen, there, "{name}");
        // Another node of the same device: the rule applies to the device.
        let printed = fails(&container, "cat /nodes/local").await;
        assert!(printed.contains(says), "{name}: {printed}");
    }
    pod.end().await;
}

fn rule(allow: bool, kind: &str, numbers: (i64, i64), access: &str) -> LinuxDeviceCgroup {
    LinuxDeviceCgroup {
        allow,
        r#type: kind.to_owned(),
        major: Some(OptionalInt64 { value: numbers.0 }),
        minor: Some(OptionalInt64 { value: numbers.1 }),
        access: access.to_owned(),
    }
}

pub(crate) async fn rules_allow_and_deny_devices(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        resources(adjust).devices = vec![
            rule(true, "c", (240, 11), "r"),
            rule(false, "c", (1, 9), "w"),
        ];
    });
    let nodes = stage.volume("nodes");
    for minor in ["11", "12"] {
        let node = nodes.join(minor).display().to_string();
        stage.machine(&["mknod", &node, "c", "240", minor]).await;
    }
    let pod = stage.pod("rules").await;
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    config.mounts = vec![bind(&nodes, "/nodes")];
    let container = pod.started(config).await;
    for (script, says) in [
        ("cat /nodes/11", PASSED),
        ("echo x > /nodes/11", DENIED),
        ("cat /nodes/12", DENIED),
        ("echo x > /dev/urandom", DENIED),
    ] {
        let printed = fails(&container, script).await;
        assert!(printed.contains(says), "{script}: {printed}");
    }
    container.sh("head -c 1 /dev/urandom").await;
    pod.end().await;
}
