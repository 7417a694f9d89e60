//! Limits, classes, and the path of the cgroup.

use std::{fs, time::Duration};

use cairn_tests::{look, until};
use nri::{
    adjust::{Adjust, SetResources},
    proto::{HugepageLimit, LinuxMemory, LinuxPids, OptionalBool, OptionalInt64, OptionalUInt64},
};

use super::stage::{Stage, limits_are_v2, of_linux, resources, sleeper};

const MIB: i64 = 1 << 20;

fn int(value: i64) -> Option<OptionalInt64> {
    Some(OptionalInt64 { value })
}

fn uint(value: u64) -> Option<OptionalUInt64> {
    Some(OptionalUInt64 { value })
}

fn flag(value: bool) -> Option<OptionalBool> {
    Some(OptionalBool { value })
}

pub(crate) async fn limits_of_memory_are_in_the_cgroup(stage: &Stage) {
    let v2 = limits_are_v2();
    let pod = stage.pod("memory").await;
    let plain = sleeper(&pod, "plain").await;
    let swap_file = if v2 {
        "memory.swap.max"
    } else {
        "memory.memsw.limit_in_bytes"
    };
    let swap = stage
        .cgroup_file(&plain, "memory", swap_file)
        .await
        .is_some();
    stage.adjusts(move |_, adjust| {
        let memory = LinuxMemory {
            limit: int(64 * MIB),
            reservation: int(32 * MIB),
            swap: int(96 * MIB).filter(|_| swap),
            use_hierarchy: flag(true),
            ..Default::default()
        };
        resources(adjust).memory = Some(if v2 {
            memory
        } else {
            LinuxMemory {
                kernel_tcp: int(16 * MIB),
                swappiness: uint(10),
                disable_oom_killer: flag(true),
                ..memory
            }
        });
    });
    let container = sleeper(&pod, "c").await;
    let mut expected = if v2 {
        vec![
            ("memory.max", (64 * MIB).to_string()),
            ("memory.low", (32 * MIB).to_string()),
        ]
    } else {
        vec![
            ("memory.limit_in_bytes", (64 * MIB).to_string()),
            ("memory.soft_limit_in_bytes", (32 * MIB).to_string()),
            ("memory.kmem.tcp.limit_in_bytes", (16 * MIB).to_string()),
            ("memory.swappiness", "10".to_owned()),
            ("memory.use_hierarchy", "1".to_owned()),
        ]
    };
    if swap {
        // v1 counts memory and swap together, v2 swap alone.
        let limit = if v2 { 32 * MIB } else { 96 * MIB };
        expected.push((swap_file, limit.to_string()));
    }
    for (file, value) in expected {
        let seen = stage.in_cgroup(&container, "memory", file).await;
        assert_eq!(seen, value, "{file}");
    }
    if !v2 {
        let control = stage
            .in_cgroup(&container, "memory", "memory.oom_control")
            .await;
        assert!(control.contains("oom_kill_disable 1"), "{control}");
    }
    pod.end().await;
}

pub(crate) async fn limits_of_the_cpu_are_in_the_cgroup(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        let cpu = resources(adjust).cpu.get_or_insert_default();
        cpu.shares = uint(300);
        cpu.quota = int(30_000);
        cpu.period = uint(60_000);
        cpu.cpus = "0".to_owned();
        cpu.mems = "0".to_owned();
    });
    let pod = stage.pod("cpu").await;
    let container = sleeper(&pod, "c").await;
    if limits_are_v2() {
        let max = stage.in_cgroup(&container, "cpu", "cpu.max").await;
        assert_eq!(max, "30000 60000");
        let weight = stage.in_cgroup(&container, "cpu", "cpu.weight").await;
        let weight: u64 = weight.parse().expect("a number");
        assert!((2..100).contains(&weight), "less than by default: {weight}");
    } else {
        for (file, value) in [
            ("cpu.shares", "300"),
            ("cpu.cfs_quota_us", "30000"),
            ("cpu.cfs_period_us", "60000"),
        ] {
            let seen = stage.in_cgroup(&container, "cpu", file).await;
            assert_eq!(seen, value, "{file}");
        }
    }
    for (file, line) in [
        ("cpuset.cpus", "Cpus_allowed_list:\t0"),
        ("cpuset.mems", "Mems_allowed_list:\t0"),
    ] {
        assert_eq!(stage.in_cgroup(&container, "cpuset", file).await, "0");
        for pid in ["1", "self"] {
            let status = container
                .exec(&["cat", &format!("/proc/{pid}/status")])
                .await;
            assert!(status.lines().any(|l| l == line), "{line} of {pid}");
        }
    }
    pod.end().await;
}

pub(crate) async fn limits_of_processes_and_huge_pages_are_in_the_cgroup(stage: &Stage) {
    let page = HugepageLimit {
        page_size: "2MB".to_owned(),
        limit: 4 << 20,
    };
    let controllers = fs::read_to_string("/proc/cgroups").expect("a kernel with cgroups");
    let huge = controllers.lines().any(|l| l.starts_with("hugetlb"))
        && fs::exists("/sys/kernel/mm/hugepages/hugepages-2048kB").unwrap_or(false);
    stage.adjusts(move |_, adjust| {
        resources(adjust).pids = Some(LinuxPids { limit: 17 });
        if huge {
            resources(adjust).hugepage_limits = vec![page.clone()];
        }
    });
    let pod = stage.pod("pids").await;
    let container = sleeper(&pod, "c").await;
    assert_eq!(stage.in_cgroup(&container, "pids", "pids.max").await, "17");
    let script = "for n in $(seq 30); do sleep 5 & done 2>&1; echo";
    let printed = container.try_exec(&["sh", "-c", script], 20).await;
    let printed = printed.expect("ExecSync");
    assert!(
        format!("{}{}", printed.out, printed.err).contains("fork"),
        "{printed:?}"
    );
    if huge {
        let mut found = None;
        for file in ["hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max"] {
            let seen = stage.cgroup_file(&container, "hugetlb", file).await;
            found = found.or(seen);
        }
        assert_eq!(found.as_deref(), Some("4194304"));
    }
    pod.end().await;
}

pub(crate) async fn unified_limits_are_in_the_cgroup_of_a_v2_host(stage: &Stage) {
    let pod = stage.pod("unified").await;
    let high = ("memory.high".to_owned(), (50 * MIB).to_string());
    if limits_are_v2() {
        let pair = high.clone();
        stage.adjusts(move |_, adjust| {
            resources(adjust).unified = [pair.clone()].into();
        });
        let container = sleeper(&pod, "c").await;
        let seen = stage.in_cgroup(&container, "memory", &high.0).await;
        assert_eq!(seen, high.1);
    }
    pod.end().await;
}

pub(crate) async fn the_cgroup_is_where_the_plugin_put_it_and_goes_with_the_container(
    stage: &Stage,
) {
    let parent = stage.daemon.cgroup_parent().to_owned();
    let place = format!("{parent}/else/where");
    let to = place.clone();
    stage.adjusts(move |_, adjust| {
        adjust.cgroups_path(&to).memory_limit(48 * MIB);
    });
    let pod = stage.pod("placed").await;
    let container = sleeper(&pod, "c").await;
    let groups = fs::read_to_string(stage.proc(&container).await.join("cgroup"));
    let groups = groups.expect("it runs");
    for line in groups.lines() {
        assert!(line.ends_with(&format!(":{place}")), "{groups}");
    }
    let inside: Vec<_> = look::cgroup_dirs(&place);
    assert!(!inside.is_empty());
    let limit = if limits_are_v2() {
        "memory.max"
    } else {
        "memory.limit_in_bytes"
    };
    let seen = stage.in_cgroup(&container, "memory", limit).await;
    assert_eq!(seen, (48 * MIB).to_string());
    // The kernel lists an exec in init's cgroup, or in a group of its own below it.
    container.exec(&["true"]).await;
    // Of several concurrent requests for one path, exactly one succeeds.
    let rivals = format!("{parent}/else/contested");
    stage.adjusts(move |_, adjust| {
        adjust.cgroups_path(&rivals);
    });
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..8 {
        let pod = pod.clone();
        let config = pod.cri.container_config(&format!("rival{n}"), &["true"]);
        asking.spawn(async move { pod.try_create(config).await });
    }
    let answers = asking.join_all().await;
    let made = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(made, 1, "{answers:?}");
    for winner in answers.into_iter().flatten() {
        winner.remove().await.expect("RemoveContainer");
    }
    let taken = of_linux(|linux| linux.cgroups_path = place.clone());
    stage.refuses(&pod, "linux.cgroups_path", taken).await;
    container.stop(Duration::ZERO).await.expect("StopContainer");
    until("the cgroup is removed", || async {
        look::cgroup_dirs(&place).is_empty().then_some(())
    })
    .await;
    for taken in ["/".to_owned(), parent] {
        let adjust = of_linux(|linux| linux.cgroups_path = taken);
        stage.refuses(&pod, "linux.cgroups_path", adjust).await;
    }
    pod.end().await;
}
