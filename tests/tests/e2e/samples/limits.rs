//! ulimit-adjuster, rdt and writable-cgroups.

use std::{fs, path::Path};

use cairn_tests::{Daemon, look};

use super::{CONNECTED, active, annotated, connect, launching, refused, tells, write};

#[tokio::test]
async fn the_ulimit_adjuster_sets_what_ulimit_shows_inside() {
    let daemon = launching("ulimit-adjuster").await;
    let cri = daemon.cri();
    let asked = [
        (
            "ulimits.noderesource.dev/container.c",
            "- {type: RLIMIT_nofile, hard: 4096, soft: 1024}\n- {type: core, hard: 0, soft: 0}",
        ),
        (
            "ulimits.nri.containerd.io/container.old",
            "[{type: NOFILE, hard: 99, soft: 98}]",
        ),
        (
            "ulimits.noderesource.dev/pod",
            "[{type: nofile, hard: 77, soft: 77}]",
        ),
    ];
    let pod = cri
        .try_pod(annotated(&cri, "limited", &asked))
        .await
        .expect("a pod");
    let show = ["sh", "-c", "ulimit -S -n; ulimit -H -n; ulimit -c"];
    for (name, limits) in [("c", ["1024", "4096", "0"]), ("old", ["98", "99", ""])] {
        let container = pod.run(name, &show).await;
        container.exited().await;
        let lines = container.lines();
        assert_eq!(lines[..2], limits[..2], "{name}");
        assert!(
            limits[2].is_empty() || lines[2] == limits[2],
            "{name}: {lines:?}"
        );
    }
    let other = pod.run("other", &show).await;
    other.exited().await;
    assert_ne!(other.lines()[0], "77", "there is no scope of the pod");
    pod.end().await;
}

#[tokio::test]
async fn the_ulimit_adjuster_fails_a_creation_for_an_unknown_type_or_crossed_limits() {
    let daemon = launching("ulimit-adjuster").await;
    let cri = daemon.cri();
    let key = "ulimits.noderesource.dev/container.c";
    for (n, (value, told)) in [
        (
            "[{type: files, hard: 2, soft: 1}]",
            "\"files\" is not known",
        ),
        (
            "[{type: nofile, hard: 1, soft: 2}]",
            "hard 1 is below soft 2",
        ),
        ("[{type: nofile, ", key),
    ]
    .into_iter()
    .enumerate()
    {
        let error = refused(&cri, &format!("bad{n}"), &[(key, value)]).await;
        tells(&error, &["10-ulimit-adjuster", told]);
    }
}

#[tokio::test]
async fn the_rdt_plugin_puts_containers_into_classes_or_the_daemon_names_what_is_missing() {
    let mut daemon = Daemon::start().await;
    let rdt = connect(&mut daemon, "rdt", &["-idx", "10"], &["10-rdt"]).await;
    let cri = daemon.cri();
    let asked = [
        ("closid.rdt.noderesource.dev/container.c", "cairn-test"),
        ("colour.rdt.noderesource.dev/container.c", "blue"),
    ];
    if Path::new("/sys/fs/resctrl/schemata").exists() {
        let pod = cri
            .try_pod(annotated(&cri, "classy", &asked))
            .await
            .expect("a pod");
        pod.sleeper("c").await;
        let tasks = fs::read_to_string("/sys/fs/resctrl/cairn-test/tasks");
        assert!(!tasks.expect("the class is there").trim().is_empty());
        pod.end().await;
        fs::remove_dir("/sys/fs/resctrl/cairn-test").expect("nobody is in it");
    } else {
        let error = refused(&cri, "classy", &asked).await;
        tells(&error, &["adjust.linux.rdt", "resctrl is not available"]);
    }
    rdt.says("default/classy/c: colour: not known").await;
    let asked = [("enablemonitoring.rdt.noderesource.dev/container.c", "maybe")];
    let error = refused(&cri, "bad", &asked).await;
    tells(&error, &["10-rdt", "\"maybe\" is not a boolean"]);
    cri.pod("plain").await.sleeper("c").await;
}

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
    // As on a host that mounts cgroup2 with nsdelegate, as systemd does; this one need not.
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

#[tokio::test]
async fn writable_cgroups_stay_read_only_where_the_host_does_not_delegate() {
    let mut daemon = Daemon::start().await;
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it is there");
    write(
        &daemon,
        "/run/mountinfo",
        &mounts.replace("nsdelegate", "rw"),
    );
    let flags = ["-idx", "10", "-host-mount-file", "/run/mountinfo"];
    let id = "10-writable-cgroups";
    let plugin = connect(&mut daemon, "writable-cgroups", &flags, &[id]).await;
    plugin.says("lacks nsdelegate").await;
    assert!(!makes_cgroups(&daemon, "asks", "true").await);
    plugin
        .says("default/asks/c: ignored, the host does not delegate cgroups")
        .await;
    active(&daemon, id, CONNECTED).await;

    let flags = ["-idx", "20", "-host-mount-file", "/run/nosuch"];
    let without = connect(&mut daemon, "writable-cgroups", &flags, &[]).await;
    assert_eq!(daemon.yard.ended(without.pid).await.code(), Some(1));
    assert!(without.log().contains("/run/nosuch"), "{}", without.log());
}
