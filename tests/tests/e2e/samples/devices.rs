//! device-injector, launched: all that its annotations can ask for.

use cairn_tests::{Daemon, container::Container};

use super::{annotated, launching, refused, tells, write};

/// A vendor's file of one device.
const VENDOR: &str = r#"{"cdiVersion": "0.6.0", "kind": "vendor.test/thing", "devices": [{"name": "one",
    "containerEdits": {"env": ["THING=one"],
                       "deviceNodes": [{"path": "/dev/thing", "type": "c", "major": 1, "minor": 7}]}}]}"#;

async fn sleeper(daemon: &Daemon, name: &str, annotations: &[(&str, &str)]) -> Container {
    let cri = daemon.cri();
    let pod = cri.try_pod(annotated(&cri, name, annotations)).await;
    pod.expect("only containers are adjusted")
        .sleeper("c")
        .await
}

/// A field of the first process's `/proc/1/stat`, counted as proc(5) does.
async fn stat(container: &Container, field: usize) -> String {
    let field = format!("{field}p");
    let text = "tr ' ' '\\n' </proc/1/stat | sed -n ";
    container.sh(&format!("{text}{field}")).await
}

#[tokio::test]
async fn the_device_injector_gives_devices_mounts_and_cdi_devices() {
    let daemon = launching("device-injector").await;
    write(&daemon, "/run/cdi/vendor.json", VENDOR);
    write(&daemon, "/run/gift/file", "a gift");
    let asked = [
        (
            "devices.noderesource.dev/container.c",
            "- {path: /dev/given, type: c, major: 1, minor: 5, file_mode: 0640, uid: 7, gid: 8}\n\
             - {path: /dev/plain, type: c, major: 1, minor: 3}",
        ),
        (
            "mounts.noderesource.dev/pod",
            r#"[{"source": "/run/gift", "destination": "/gift", "type": "bind", "options": ["bind", "ro"]}]"#,
        ),
        ("cdi-devices.noderesource.dev", "[vendor.test/thing=one]"),
    ];
    let container = sleeper(&daemon, "things", &asked).await;
    let given = ["stat", "-c", "%t:%T %a %u:%g", "/dev/given"];
    assert_eq!(container.exec(&given).await, "1:5 640 7:8");
    assert_eq!(container.sh("head -c 3 /dev/given | wc -c").await, "3");
    container.sh("echo x >/dev/plain").await;
    assert_eq!(
        container
            .sh("cat /gift/file; echo; touch /gift/x || echo no")
            .await,
        "a gift\nno"
    );
    let thing = "stat -c %t:%T /dev/thing; tr '\\0' '\\n' </proc/1/environ | grep THING";
    assert_eq!(container.sh(thing).await, "1:7\nTHING=one");
}

#[tokio::test]
async fn the_device_injector_sets_priorities_sysctls_and_memory_policy() {
    let daemon = launching("device-injector").await;
    let asked = [
        (
            "io-priority.noderesource.dev/pod",
            "{class: IOPRIO_CLASS_BE, priority: 6}",
        ),
        (
            "scheduling-policy.noderesource.dev",
            "{policy: SCHED_BATCH, nice: 5}",
        ),
        (
            "sysctl.noderesource.dev/container.c",
            "{net.core.somaxconn: '257'}",
        ),
        (
            "memory-policy.noderesource.dev",
            "{mode: MPOL_INTERLEAVE, nodes: '0'}",
        ),
    ];
    let container = sleeper(&daemon, "manners", &asked).await;
    assert_eq!(
        container.exec(&["ionice", "-p", "1"]).await,
        "best-effort: prio 6"
    );
    assert_eq!(stat(&container, 41).await, "3", "SCHED_BATCH");
    assert_eq!(stat(&container, 19).await, "5", "the nice value");
    assert_eq!(
        container
            .exec(&["cat", "/proc/sys/net/core/somaxconn"])
            .await,
        "257"
    );
    let policies = container
        .sh("cut -d' ' -f2 /proc/1/numa_maps | sort -u")
        .await;
    assert_eq!(policies, "interleave:0");
}

#[tokio::test]
async fn the_device_injector_moves_a_network_device_of_the_host() {
    let daemon = launching("device-injector").await;
    daemon
        .lines(&[
            "ip", "link", "add", "given0", "type", "veth", "peer", "given1",
        ])
        .await;
    let asked = [(
        "network-devices.noderesource.dev",
        "[{hostIf: given0, name: net7}]",
    )];
    let container = sleeper(&daemon, "wired", &asked).await;
    container.exec(&["ip", "link", "show", "net7"]).await;
    let links = daemon.lines(&["ip", "-o", "link", "show"]).await;
    assert!(
        !links.iter().any(|link| link.contains("given0")),
        "{links:?}"
    );
}

#[tokio::test]
async fn the_device_injector_takes_the_nearest_annotation_and_the_newer_of_two_names() {
    let daemon = launching("device-injector").await;
    let all = [
        "devices.noderesource.dev/container.c",
        "devices.nri.io/container.c",
        "devices.noderesource.dev/pod",
        "devices.nri.io/pod",
        "devices.noderesource.dev",
        "devices.nri.io",
    ];
    let device = |n: usize| format!("[{{path: /dev/at{n}, type: c, major: 1, minor: 3}}]");
    let values: Vec<String> = (0..all.len()).map(device).collect();
    let cri = daemon.cri();
    for first in 0..all.len() {
        let asked: Vec<_> = (first..all.len())
            .map(|n| (all[n], values[n].as_str()))
            .collect();
        let config = annotated(&cri, &format!("from{first}"), &asked);
        let pod = cri.try_pod(config).await.expect("a pod");
        let container = pod.run("c", &["sh", "-c", "ls -d /dev/at*"]).await;
        container.says(&format!("/dev/at{first}")).await;
        container.exited().await;
        assert_eq!(container.lines().len(), 1, "{:?}", container.lines());
        pod.end().await;
    }
    // The older domain is known for all but sysctls.
    let old = [
        (
            "mounts.nri.io",
            "[{source: tmpfs, destination: /old, type: tmpfs}]",
        ),
        ("io-priority.nri.io", "{class: IOPRIO_CLASS_IDLE}"),
        ("sysctl.nri.io", "{net.core.somaxconn: '257'}"),
    ];
    let container = sleeper(&daemon, "old", &old).await;
    assert_eq!(container.sh("ls -d /old; ionice -p 1").await, "/old\nidle");
    assert_ne!(
        container
            .exec(&["cat", "/proc/sys/net/core/somaxconn"])
            .await,
        "257"
    );
}

#[tokio::test]
async fn the_device_injector_fails_a_creation_in_one_line_that_names_the_annotation() {
    let daemon = launching("device-injector").await;
    let cri = daemon.cri();
    for (n, (key, value, told)) in [
        (
            "devices.noderesource.dev/pod",
            "[{path: ",
            "devices.noderesource.dev/pod",
        ),
        (
            "devices.noderesource.dev",
            "- {path: /dev/x\n- more",
            "devices.noderesource.dev",
        ),
        (
            "mounts.noderesource.dev",
            "[a, b]",
            "mounts.noderesource.dev",
        ),
        (
            "scheduling-policy.noderesource.dev",
            "{policy: SCHED_MINE}",
            "SCHED_MINE",
        ),
        (
            "memory-policy.noderesource.dev",
            "{mode: MPOL_MINE}",
            "MPOL_MINE",
        ),
        // What the daemon refuses, of what the program asks for.
        (
            "devices.noderesource.dev",
            "[{path: /dev/x, type: z}]",
            "adjust.linux.devices",
        ),
        (
            "cdi-devices.noderesource.dev",
            "[nobody.test/thing=two]",
            "nobody.test/thing=two",
        ),
        (
            "sysctl.noderesource.dev",
            "{kernel.panic: '1'}",
            "kernel.panic",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let error = refused(&cri, &format!("bad{n}"), &[(key, value)]).await;
        tells(&error, &[told]);
    }
}
