//! device-injector, ulimit-adjuster, rdt, writable-cgroups, demo-adjuster, network-device-injector:
//! their handling of annotations and flags.

use nri::{adjust::Strip, merge::MergedCreate, proto::*};

use crate::world::{World, container, pod};

async fn with(program: &str, flags: &[&str], id: &str) -> World {
    let mut world = World::start().await;
    let all = [&["-idx", "10"], flags].concat();
    world.run(program, &all, &[id]).await;
    world
}

fn linux(merged: &MergedCreate) -> LinuxContainerAdjustment {
    merged.adjust.linux.clone().expect("always present")
}

async fn devices() -> World {
    with(
        env!("CARGO_BIN_EXE_device-injector"),
        &[],
        "10-device-injector",
    )
    .await
}

#[tokio::test]
async fn the_device_injector_gives_what_annotations_ask_for() {
    let world = devices().await;
    let merged = world
        .create(pod(&[]), container())
        .await
        .expect("nothing is asked for");
    assert_eq!(merged.adjust.strip(), None);
    let asked = pod(&[
        (
            "devices.noderesource.dev/container.ctr0",
            "- {path: /dev/x, type: c, major: 1, minor: 3, file_mode: 0640, uid: 7}\n- {path: /dev/y, type: b}",
        ),
        (
            "mounts.noderesource.dev/pod",
            r#"[{"source": "/s", "destination": "/d", "type": "bind", "options": ["ro"]}]"#,
        ),
        ("cdi-devices.nri.io", "[vendor.com/class=dev]"),
        (
            "io-priority.noderesource.dev",
            "{class: IOPRIO_CLASS_RT, priority: 5}",
        ),
        (
            "scheduling-policy.noderesource.dev",
            "{policy: SCHED_FIFO, priority: 10, flags: [SCHED_FLAG_RESET_ON_FORK]}",
        ),
        (
            "network-devices.noderesource.dev",
            "[{hostIf: eth7, name: net0}]",
        ),
        ("sysctl.noderesource.dev", "{net.core.somaxconn: '256'}"),
        (
            "memory-policy.noderesource.dev",
            "{mode: MPOL_INTERLEAVE, nodes: '0,1', flags: [MPOL_F_STATIC_NODES]}",
        ),
    ]);
    let merged = world
        .create(asked, container())
        .await
        .expect("all well-formed");
    let made = linux(&merged);
    assert_eq!(made.devices.len(), 2);
    assert_eq!(
        made.devices[0].file_mode.as_ref().map(|m| m.value),
        Some(0o640)
    );
    assert_eq!(made.devices[0].uid.as_ref().map(|m| m.value), Some(7));
    assert_eq!(
        (&made.devices[0].gid, &made.devices[1].file_mode),
        (&None, &None)
    );
    assert_eq!(merged.adjust.mounts[0].options, ["ro"]);
    assert_eq!(merged.adjust.cdi_devices[0].name, "vendor.com/class=dev");
    let io = made.io_priority.expect("asked for");
    assert_eq!((io.class(), io.priority), (IoPrioClass::IoprioClassRt, 5));
    let scheduler = made.scheduler.expect("asked for");
    assert_eq!(scheduler.policy(), LinuxSchedulerPolicy::SchedFifo);
    assert_eq!((scheduler.priority, scheduler.flags.len()), (10, 1));
    assert_eq!(made.net_devices["eth7"].name, "net0");
    assert_eq!(made.sysctl["net.core.somaxconn"], "256");
    let policy = made.memory_policy.expect("asked for");
    assert_eq!(
        (policy.mode(), policy.nodes.as_str()),
        (MpolMode::MpolInterleave, "0,1")
    );
}

#[tokio::test]
async fn the_device_injector_takes_the_nearest_annotation_old_or_new() {
    let world = devices().await;
    let device = |path: &str| format!("[{{path: {path}}}]");
    let (far, old, near) = (device("/far"), device("/old"), device("/near"));
    let mut asked = vec![
        ("devices.noderesource.dev/pod", far.as_str()),
        ("devices.nri.io/container.ctr0", old.as_str()),
    ];
    let path = |merged: &MergedCreate| linux(merged).devices[0].path.clone();
    let merged = world
        .create(pod(&asked), container())
        .await
        .expect("well-formed");
    assert_eq!(path(&merged), "/old", "nearer, though of the older domain");
    asked.push(("devices.noderesource.dev/container.ctr0", near.as_str()));
    let merged = world
        .create(pod(&asked), container())
        .await
        .expect("well-formed");
    assert_eq!(path(&merged), "/near");
    let other = pod(&[("devices.noderesource.dev/container.other", &far)]);
    let merged = world
        .create(other, container())
        .await
        .expect("another container's");
    assert_eq!(merged.adjust.strip(), None);
    // The older domain is supported for all except sysctls.
    let old = pod(&[
        ("io-priority.nri.io", "{class: IOPRIO_CLASS_IDLE}"),
        ("sysctl.nri.io", "{net.core.somaxconn: '257'}"),
    ]);
    let made = linux(&world.create(old, container()).await.expect("well-formed"));
    assert!(made.io_priority.is_some() && made.sysctl.is_empty());
}

#[tokio::test]
async fn the_device_injector_refuses_what_it_does_not_understand() {
    let world = devices().await;
    for (key, value, reported) in [
        (
            "devices.noderesource.dev",
            "{path: /x}",
            "devices.noderesource.dev",
        ),
        (
            "devices.noderesource.dev",
            "[{path: /x, file_mode: 9z}]",
            "9z",
        ),
        (
            "scheduling-policy.noderesource.dev",
            "{policy: SCHED_X}",
            "SCHED_X",
        ),
        (
            "scheduling-policy.noderesource.dev",
            "{policy: SCHED_FIFO, flags: [F]}",
            "\"F\"",
        ),
        ("memory-policy.noderesource.dev", "{mode: MPOL_X}", "MPOL_X"),
        ("sysctl.noderesource.dev", "[a]", "sysctl"),
        (
            "devices.noderesource.dev",
            "- {path: /dev/x\n- more",
            "devices",
        ),
        (
            "mounts.noderesource.dev",
            "[a, b]",
            "mounts.noderesource.dev",
        ),
    ] {
        let refused = world.create(pod(&[(key, value)]), container()).await;
        let refused = refused.expect_err(value);
        assert!(refused.contains(reported), "{refused}");
        assert!(refused.contains("10-device-injector"), "{refused}");
        assert!(!refused.contains('\n'), "{refused}");
    }
    let odd = pod(&[("io-priority.noderesource.dev", "{class: FAST}")]);
    let merged = world
        .create(odd, container())
        .await
        .expect("only a warning");
    assert_eq!(merged.adjust.strip(), None);
}

#[tokio::test]
async fn the_ulimit_adjuster_knows_every_type_and_refuses_others() {
    let program = env!("CARGO_BIN_EXE_ulimit-adjuster");
    let world = with(program, &[], "10-ulimit-adjuster").await;
    let types = [
        "AS",
        "CORE",
        "CPU",
        "DATA",
        "FSIZE",
        "LOCKS",
        "MEMLOCK",
        "MSGQUEUE",
        "NICE",
        "NOFILE",
        "NPROC",
        "RSS",
        "RTPRIO",
        "RTTIME",
        "SIGPENDING",
        "STACK",
    ];
    let mut list = String::new();
    for (n, kind) in types.iter().enumerate() {
        let spelt = [
            kind.to_string(),
            format!("RLIMIT_{kind}"),
            format!("rlimit_{}", kind.to_lowercase()),
        ];
        list.push_str(&format!(
            "- {{type: {}, hard: {}, soft: {n}}}\n",
            spelt[n % 3],
            n + 1
        ));
    }
    let key = "ulimits.noderesource.dev/container.ctr0";
    let merged = world
        .create(pod(&[(key, &list)]), container())
        .await
        .expect("all known");
    let kinds: Vec<_> = merged
        .adjust
        .rlimits
        .iter()
        .map(|r| r.r#type.clone())
        .collect();
    assert_eq!(kinds, types.map(|kind| format!("RLIMIT_{kind}")));
    let nofile = &merged.adjust.rlimits[9];
    assert_eq!((nofile.hard, nofile.soft), (10, 9));

    let old = "ulimits.nri.containerd.io/container.ctr0";
    let one = "[{type: nofile, hard: 2, soft: 1}]";
    let merged = world
        .create(pod(&[(old, one)]), container())
        .await
        .expect("the older key");
    assert_eq!(merged.adjust.rlimits.len(), 1);
    let pod_wide = pod(&[("ulimits.noderesource.dev/pod", one)]);
    let merged = world
        .create(pod_wide, container())
        .await
        .expect("no such scope");
    assert_eq!(merged.adjust.rlimits.len(), 0);
    for (bad, reported) in [
        ("[{type: files, hard: 2, soft: 1}]", "files"),
        (
            "[{type: nofile, hard: 1, soft: 2}]",
            "hard 1 is below soft 2",
        ),
        ("[{type: nofile}]", "hard"),
        ("{", key),
    ] {
        let refused = world
            .create(pod(&[(key, bad)]), container())
            .await
            .expect_err(bad);
        assert!(refused.contains(reported), "{refused}");
    }
}

#[tokio::test]
async fn the_rdt_plugin_sets_what_its_annotations_say() {
    let world = with(env!("CARGO_BIN_EXE_rdt"), &[], "10-rdt").await;
    let asked = pod(&[
        ("closid.rdt.noderesource.dev/container.ctr0", "gold"),
        (
            "schemata.rdt.noderesource.dev/container.ctr0",
            "L3:0=f,MB:0=50",
        ),
        (
            "enablemonitoring.rdt.noderesource.dev/container.ctr0",
            "true",
        ),
        ("unknown.rdt.noderesource.dev/container.ctr0", "x"),
        ("closid.rdt.noderesource.dev/container.other", "lead"),
    ]);
    let rdt = linux(&world.create(asked, container()).await.expect("well-formed")).rdt;
    let rdt = rdt.expect("asked for");
    assert_eq!(rdt.clos_id.map(|v| v.value).as_deref(), Some("gold"));
    assert_eq!(
        rdt.schemata.map(|v| v.value),
        Some(vec!["L3:0=f".into(), "MB:0=50".into()])
    );
    assert_eq!(rdt.enable_monitoring.map(|v| v.value), Some(true));
    let merged = world
        .create(pod(&[]), container())
        .await
        .expect("nothing asked");
    assert_eq!(merged.adjust.strip(), None);
    let bad = pod(&[(
        "enablemonitoring.rdt.noderesource.dev/container.ctr0",
        "maybe",
    )]);
    let refused = world
        .create(bad, container())
        .await
        .expect_err("no boolean");
    assert!(refused.contains("maybe"), "{refused}");
}

const DELEGATED: &str =
    "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

#[tokio::test]
async fn cgroups_become_writable_only_where_asked_for_and_delegated() {
    let program = env!("CARGO_BIN_EXE_writable-cgroups");
    let key = "writable-cgroups.noderesource.dev";
    let near = "writable-cgroups.noderesource.dev/container.ctr0";
    for (mountinfo, delegated) in [
        (DELEGATED, true),
        (
            "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw,nsdelegate",
            true,
        ),
        (
            "30 25 0:26 / /sys/fs/cgroup rw,nsdelegate - cgroup2 cgroup2 rw",
            false,
        ),
        (
            "30 25 0:26 / /elsewhere rw - cgroup2 cgroup2 rw,nsdelegate",
            false,
        ),
        (
            "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,nsdelegate",
            false,
        ),
    ] {
        let mut world = World::start().await;
        let file = world.write("mountinfo", mountinfo);
        let flags = ["-idx", "10", "-host-mount-file", &file];
        world.run(program, &flags, &["10-writable-cgroups"]).await;
        let asked = pod(&[(key, "false"), (near, "true")]);
        let merged = world
            .create(asked, container())
            .await
            .expect("ignored or done");
        let options: Vec<_> = merged
            .adjust
            .mounts
            .iter()
            .map(|m| m.options.clone())
            .collect();
        let expected = [vec!["nosuid".to_owned(), "rw".to_owned()]];
        assert_eq!(options, expected[..usize::from(delegated)], "{mountinfo}");
        if !delegated {
            continue;
        }
        for not_asked in [
            pod(&[]),
            pod(&[(key, "True")]),
            pod(&[(key, "true"), (near, "")]),
        ] {
            let merged = world
                .create(not_asked, container())
                .await
                .expect("nothing to do");
            assert_eq!(merged.adjust.mounts, []);
        }
        let mut writable = container();
        writable.mounts[0].options = vec!["rw".into()];
        let merged = world
            .create(pod(&[(key, "true")]), writable)
            .await
            .expect("it is already");
        assert_eq!(merged.adjust.mounts, []);
        let mut without = container();
        without.mounts.clear();
        let refused = world.create(pod(&[(key, "true")]), without).await;
        assert!(
            refused
                .expect_err("no such mount")
                .contains("/sys/fs/cgroup")
        );
    }
}

#[tokio::test]
async fn the_demo_adjuster_makes_one_adjustment_of_each_kind() {
    let flags = [
        "-container",
        "ctr0",
        "-annotation",
        "a=b=c",
        "-env",
        "E=1",
        "-env",
        "F=",
        "-args",
        "sleep 5",
        "-mount",
        "/etc:/demo:ro",
        "-hook",
        "createRuntime:/bin/true",
        "-device",
        "/dev/demo:c:1:3:666",
        "-rlimit",
        "nofile=1:2",
        "-memory",
        "67108864",
        "-cpu-shares",
        "512",
        "-pids",
        "64",
    ];
    let world = with(
        env!("CARGO_BIN_EXE_demo-adjuster"),
        &flags,
        "10-demo-adjuster",
    )
    .await;
    let merged = world.create(pod(&[]), container()).await.expect("no veto");
    let (made, adjust) = (linux(&merged), &merged.adjust);
    assert_eq!(adjust.annotations["a"], "b=c");
    assert_eq!(adjust.env.len(), 2);
    assert_eq!(adjust.args, ["sleep", "5"]);
    assert_eq!(adjust.mounts[0].options, ["rbind", "ro"]);
    let hooks = adjust.hooks.clone().expect("always present");
    assert_eq!(hooks.create_runtime[0].path, "/bin/true");
    assert_eq!((made.devices[0].minor, adjust.rlimits[0].hard), (3, 2));
    let resources = made.resources.expect("always present");
    assert_eq!(
        resources.memory.and_then(|m| m.limit).map(|v| v.value),
        Some(67108864)
    );
    assert_eq!(
        resources.cpu.and_then(|c| c.shares).map(|v| v.value),
        Some(512)
    );
    assert_eq!(resources.pids.map(|p| p.limit), Some(64));
    let mut other = container();
    other.name = "other".into();
    let merged = world
        .create(pod(&[]), other)
        .await
        .expect("not its container");
    assert_eq!(merged.adjust.strip(), None);
}

#[tokio::test]
async fn the_network_device_injector_vetoes_what_it_cannot_do() {
    let program = env!("CARGO_BIN_EXE_network-device-injector");
    let world = with(program, &[], "10-network-device-injector").await;
    world
        .nri
        .run_pod_sandbox(pod(&[]))
        .await
        .expect("nothing is asked for");
    let key = "netdevice.noderesource.dev";
    let mut on_host = pod(&[(key, "[{name: nosuch0}]")]);
    on_host.linux = None;
    let refused = world
        .nri
        .run_pod_sandbox(on_host.clone())
        .await
        .expect_err("no namespace");
    assert!(
        refused.to_string().contains("network of the host"),
        "{refused}"
    );
    for (value, reported) in [
        ("[{name: nosuch0, address: 10.0.0}]", "10.0.0"),
        ("[{name: nosuch0}]", "/run/netns/pod0"),
        ("{", key),
    ] {
        let refused = world.nri.run_pod_sandbox(pod(&[(key, value)])).await;
        let refused = refused.expect_err(value).to_string();
        assert!(refused.contains(reported), "{refused}");
    }
    for gone in [
        on_host,
        pod(&[(key, "[{name: nosuch0}]")]),
        pod(&[(key, "{")]),
    ] {
        let reported = world.nri.stop_pod_sandbox(gone).await;
        assert_eq!(
            reported.deliveries[0].outcome,
            nri::Outcome::Answered,
            "nothing to undo"
        );
    }
}
