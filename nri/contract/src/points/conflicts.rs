//! C-04.3: two plugins that set the same value.

use nri::{
    adjust::{Adjust, SetResources},
    proto::*,
};

use crate::{
    cri::SLEEPER,
    point::{Cost, Point},
    stage::Stage,
};
use testkit::verdict::{Answer, Checked, reported, same, that};

type Change = fn(&mut ContainerAdjustment, &str);

/// The value that both plugins set, and the word that the error must contain.
const CONFLICTS: [(&str, &str, Change); 18] = [
    ("env", "SAME", |a, v| {
        a.add_env("SAME", v);
    }),
    ("annotation", "same-key", |a, v| {
        a.add_annotation("same-key", v);
    }),
    ("mount", "/same", |a, v| {
        a.add_mount(Mount {
            destination: "/same".into(),
            source: "tmpfs".into(),
            r#type: "tmpfs".into(),
            options: vec![format!("size={}k", v.len() * 64)],
        });
    }),
    ("device", "/dev/same", |a, v| {
        a.add_device(LinuxDevice {
            path: "/dev/same".into(),
            r#type: "c".into(),
            major: 1,
            minor: 2 + i64::try_from(v.len()).unwrap_or(0),
            ..Default::default()
        });
    }),
    ("args", "args", |a, v| {
        a.add_args(["sleep", v]);
    }),
    ("rlimit", "NOFILE", |a, v| {
        a.add_rlimit("RLIMIT_NOFILE", 700 + v.len() as u64, 700);
    }),
    ("oom-score", "oom", |a, v| {
        a.oom_score_adj(v.len() as i64);
    }),
    ("memory-limit", "mem", |a, v| {
        a.memory_limit((v.len() as i64) << 26);
    }),
    ("cpu-shares", "cpu", |a, v| {
        a.cpu_shares(v.len() as u64 * 100);
    }),
    ("cpu-quota", "cpu", |a, v| {
        a.cpu_quota(v.len() as i64 * 10_000);
    }),
    ("cpuset", "cpu", |a, v| {
        a.cpuset_cpus(["0", "0-1"][v.len() % 2]);
    }),
    ("pids-limit", "pids", |a, v| {
        a.pids_limit(v.len() as i64 * 100);
    }),
    ("sysctl", "net.ipv4.ip_default_ttl", |a, v| {
        a.add_sysctl("net.ipv4.ip_default_ttl", v.len().to_string());
    }),
    ("namespace", "uts", |a, _| {
        a.add_namespace("uts", "");
    }),
    ("cgroups-path", "cgroup", |a, v| {
        a.cgroups_path(format!("/nri-contract/{v}"));
    }),
    ("scheduler", "sched", |a, v| {
        a.scheduler(LinuxScheduler {
            policy: LinuxSchedulerPolicy::SchedBatch as i32,
            nice: v.len() as i32,
            ..Default::default()
        });
    }),
    ("io-priority", "io", |a, v| {
        a.io_priority(LinuxIoPriority {
            class: IoPrioClass::IoprioClassBe as i32,
            priority: v.len() as i32,
        });
    }),
    ("seccomp-policy", "seccomp", |a, _| {
        a.seccomp_policy(LinuxSeccomp {
            default_action: "SCMP_ACT_ALLOW".into(),
            ..Default::default()
        });
    }),
];

pub(super) fn points() -> Vec<Point> {
    let conflicts = CONFLICTS.iter().map(|(name, word, change)| {
        let id = format!("C-04.3/{name}");
        let title = format!(
            "two plugins that set the same {name} fail the creation, by their names and the field's"
        );
        Point::new(id, title, Cost::Fast, move |stage| async move {
            conflict(&stage, word, *change).await
        })
    });
    conflicts.collect()
}

async fn conflict(s: &Stage, word: &str, change: Change) -> Checked {
    let (one, two) = (s.plugin("10", "a").await?, s.plugin("20", "bb").await?);
    one.adjusts(move |adjust| change(adjust, "1"));
    two.adjusts(move |adjust| change(adjust, "22"));
    let pod = s.pod("p").await?;
    let error = pod.create("c", &SLEEPER).await.fails("CreateContainer")?;
    let text = error.message().to_lowercase();
    let names = [&one, &two].map(|plugin| plugin.id().split_once('-').map_or("", |(_, n)| n));
    for word in [names[0], names[1], &word.to_lowercase()] {
        that(
            text.contains(word),
            format!("the error has {word}"),
            reported(&error),
        )?;
    }
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    same("containers listed", 0, listed.len())
}
