//! writable-cgroups: the effects of a container's access to its cgroups.

use cairn_tests::{Daemon, look};

use super::{annotated, connect, write};

/// Whether a container may make a cgroup below its own.
async fn makes_cgroups(daemon: &Daemon, name: &str, value: &str) -> bool {
    let cri = daemon.cri();
    let asked = [("writable-cgroups.noderesource.dev/container.c", value)];
    let pod = cri
        .try_pod(annotated(&cri, name, &asked))
        .await
        .expect("a pod");
    let container = pod.sleeper("c").await;
    // The memory hierarchy, or the only one.
    let script =
        "cd /sys/fs/cgroup; [ ! -d memory ] || cd memory; mkdir mine && rmdir mine && echo made";
    let ran = container
        .try_exec(&["sh", "-c", script], 20)
        .await
        .expect("ExecSync");
    assert!(ran.code == 0 || ran.err.contains("Read-only"), "{ran:?}");
    pod.end().await;
    let left: Vec<_> = look::cgroup_dirs(daemon.cgroup_parent());
    let left: Vec<_> = left.iter().flat_map(|dir| look::subdirs(dir)).collect();
    assert!(left.is_empty(), "{left:?}");
    ran.out == "made\n"
}

#[tokio::test]
async fn writable_cgroups_are_for_who_asks_where_the_host_delegates() {
    let mut daemon = Daemon::start().await;
    // Simulates a host that mounts cgroup2 with nsdelegate, as systemd does.
    let delegating = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
    write(&daemon, "/run/mountinfo", delegating);
    let flags = ["-idx", "10", "-host-mount-file", "/run/mountinfo"];
    connect(
        &mut daemon,
        "writable-cgroups",
        &flags,
        &["10-writable-cgroups"],
    )
    .await;
    assert!(makes_cgroups(&daemon, "asks", "true").await);
    assert!(
        !makes_cgroups(&daemon, "declines", "True").await,
        "only the exact word counts"
    );
}
