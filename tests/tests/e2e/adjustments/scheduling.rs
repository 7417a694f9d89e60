//! Scheduler, I/O priority and memory policy of init and of an exec.

use std::fs;

use cairn_tests::{container::Container, look};
use nri::{
    adjust::Adjust,
    proto::{
        IoPrioClass, LinuxIoPriority, LinuxMemoryPolicy, LinuxScheduler,
        LinuxSchedulerFlag as Flag, LinuxSchedulerPolicy as Policy, MpolFlag, MpolMode,
        OptionalInt64, OptionalUInt64,
    },
};

use super::stage::{Stage, resources, sleeper};

fn scheduler(policy: Policy, nice: i32, priority: i32, flags: &[Flag]) -> LinuxScheduler {
    LinuxScheduler {
        policy: policy as i32,
        nice,
        priority,
        flags: flags.iter().map(|f| *f as i32).collect(),
        ..Default::default()
    }
}

/// Policy in the kernel's number, nice value and real-time priority.
#[derive(Debug, PartialEq, Eq)]
struct Scheduled {
    policy: u32,
    nice: i32,
    priority: u32,
}

/// Read from `/proc/<pid>/stat` inside the container.
async fn scheduled(container: &Container, pid: &str) -> Scheduled {
    let stat = container.exec(&["cat", &format!("/proc/{pid}/stat")]).await;
    let (_, after_name) = stat.rsplit_once(')').expect("a name in brackets");
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // The first of these is field 3 of proc_pid_stat(5).
    let field = |n: usize| fields[n - 3].parse::<i32>().expect("a number");
    Scheduled {
        nice: field(19),
        priority: field(40).unsigned_abs(),
        policy: field(41).unsigned_abs(),
    }
}

const OTHER: u32 = 0;
const FIFO: u32 = 1;
const BATCH: u32 = 3;
const IDLE: u32 = 5;
const DEADLINE: u32 = 6;

pub(crate) async fn the_scheduler_is_set_for_init_and_exec(stage: &Stage) {
    stage.adjusts(|name, adjust| {
        adjust.scheduler(match name {
            "batch" => scheduler(Policy::SchedBatch, 5, 0, &[]),
            "idle" => scheduler(Policy::SchedIdle, 0, 0, &[]),
            "first" => scheduler(Policy::SchedOther, -7, 0, &[Flag::SchedFlagResetOnFork]),
            "kept" => scheduler(Policy::SchedOther, 9, 0, &[Flag::SchedFlagKeepParams]),
            _ => scheduler(Policy::SchedNone, 0, 0, &[]),
        });
    });
    let pod = stage.pod("scheduler").await;
    for (name, policy, nice) in [
        ("batch", BATCH, 5),
        ("idle", IDLE, 0),
        ("kept", OTHER, 0),
        ("none", OTHER, 0),
    ] {
        let container = sleeper(&pod, name).await;
        for pid in ["1", "self"] {
            let seen = scheduled(&container, pid).await;
            assert_eq!((seen.policy, seen.nice), (policy, nice), "{name} {pid}");
        }
    }
    let script = "sleep 1000 & echo $! > /tmp/child; wait";
    let first = pod.run("first", &["sh", "-c", script]).await;
    let child = cairn_tests::until("the child is there", || async {
        let seen = first.try_exec(&["cat", "/tmp/child"], 10).await.ok()?;
        (seen.code == 0 && !seen.out.trim().is_empty()).then(|| seen.out.trim().to_owned())
    })
    .await;
    assert_eq!(scheduled(&first, "1").await.nice, -7);
    assert_eq!(scheduled(&first, "self").await.nice, -7);
    assert_eq!(scheduled(&first, &child).await.nice, 0, "reset by the fork");
    pod.end().await;
}

pub(crate) async fn a_realtime_policy_has_its_priority_and_its_share_of_the_cpu(stage: &Stage) {
    let runtime = |value| Some(OptionalInt64 { value });
    let period = |value| Some(OptionalUInt64 { value });
    let pod = stage.pod("realtime").await;
    let plain = sleeper(&pod, "plain").await;
    let groups = stage
        .cgroup_file(&plain, "cpu", "cpu.rt_runtime_us")
        .await
        .is_some();
    stage.adjusts(move |_, adjust| {
        adjust.scheduler(scheduler(Policy::SchedFifo, 0, 7, &[]));
        if groups {
            let cpu = resources(adjust).cpu.get_or_insert_default();
            cpu.realtime_runtime = runtime(20_000);
            cpu.realtime_period = period(500_000);
        }
    });
    if groups {
        // A container's real-time budget is part of its parent's, which the administrator sets.
        let parent = look::cgroup_dir("cpu", stage.daemon.cgroup_parent()).expect("a cgroup");
        fs::write(parent.join("cpu.rt_runtime_us"), "90000").expect("the machine gives it");
    }
    let container = sleeper(&pod, "fifo").await;
    for pid in ["1", "self"] {
        let seen = scheduled(&container, pid).await;
        assert_eq!((seen.policy, seen.priority), (FIFO, 7), "{pid}");
    }
    if groups {
        for (file, value) in [
            ("cpu.rt_runtime_us", "20000"),
            ("cpu.rt_period_us", "500000"),
        ] {
            assert_eq!(stage.in_cgroup(&container, "cpu", file).await, value);
        }
    }
    pod.end().await;
}

pub(crate) async fn a_deadline_has_its_three_times(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        adjust.scheduler(LinuxScheduler {
            runtime: 1_000_000,
            deadline: 10_000_000,
            period: 20_000_000,
            ..scheduler(Policy::SchedDeadline, 0, 0, &[])
        });
    });
    let pod = stage.pod("deadline").await;
    let container = sleeper(&pod, "c").await;
    for pid in ["1", "self"] {
        let seen = scheduled(&container, pid).await;
        assert_eq!(seen.policy, DEADLINE, "{pid}");
    }
    let pid = container.pid().await.expect("it runs").to_string();
    let seen = stage.machine(&["chrt", "-p", &pid]).await;
    assert!(
        seen.contains("1000000/10000000/20000000"),
        "runtime, deadline, period: {seen}"
    );
    pod.end().await;
}

pub(crate) async fn the_io_priority_is_set_for_init_and_exec(stage: &Stage) {
    let priority = |class: IoPrioClass, priority| LinuxIoPriority {
        class: class as i32,
        priority,
    };
    stage.adjusts(move |name, adjust| {
        adjust.io_priority(match name {
            "effort" => priority(IoPrioClass::IoprioClassBe, 3),
            "idle" => priority(IoPrioClass::IoprioClassIdle, 0),
            _ => priority(IoPrioClass::IoprioClassRt, 2),
        });
    });
    let pod = stage.pod("io").await;
    for (name, expected) in [
        ("effort", "best-effort: prio 3"),
        ("idle", "idle"),
        ("first", "realtime: prio 2"),
    ] {
        let container = sleeper(&pod, name).await;
        let init = container.exec(&["ionice", "-p", "1"]).await;
        assert!(init.starts_with(expected), "{name}: {init}");
        let exec = container.exec(&["ionice"]).await;
        assert!(exec.starts_with(expected), "{name}: exec {exec}");
    }
    pod.end().await;
}

pub(crate) async fn the_memory_policy_is_set_for_init_and_exec(stage: &Stage) {
    let policy = |mode: MpolMode, nodes: &str, flags: &[MpolFlag]| LinuxMemoryPolicy {
        mode: mode as i32,
        nodes: nodes.to_owned(),
        flags: flags.iter().map(|f| *f as i32).collect(),
    };
    stage.adjusts(move |name, adjust| {
        adjust.memory_policy(match name {
            "bind" => policy(MpolMode::MpolBind, "0", &[MpolFlag::MpolFStaticNodes]),
            "preferred" => policy(MpolMode::MpolPreferred, "0", &[]),
            "local" => policy(MpolMode::MpolLocal, "", &[]),
            _ => policy(MpolMode::MpolDefault, "", &[]),
        });
    });
    let pod = stage.pod("nodes").await;
    for (name, expected) in [
        ("bind", " bind=static:0 "),
        ("preferred", " prefer:0 "),
        ("local", " local "),
        ("default", " default "),
    ] {
        let container = sleeper(&pod, name).await;
        for pid in ["1", "self"] {
            let maps = container
                .exec(&["cat", &format!("/proc/{pid}/numa_maps")])
                .await;
            let heap = maps.lines().next().expect("a line");
            assert!(heap.contains(expected), "{name} {pid}: {heap}");
        }
    }
    pod.end().await;
}
