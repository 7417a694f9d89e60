//! C-04.6: the resources of a plugin's adjustment, read in the container's cgroup.

use std::path::Path;

use nri::{adjust::SetResources, proto::*};

use super::{
    create::{LIMIT, is_limited, pid_of},
    fields::adjusted,
};
use crate::{
    look,
    point::{Point, points},
    stage::Stage,
};
use testkit::verdict::{Checked, same, skip};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "C-04.6/memory-limit" "the memory limit is in the cgroup" memory_limit;
        Fast "C-04.6/memory-reservation" "the memory reservation is in the cgroup" memory_reservation;
        Fast "C-04.6/cpu-shares" "CPU shares are in the cgroup" cpu_shares;
        Fast "C-04.6/cpu-quota" "CPU quota and period are in the cgroup" cpu_quota;
        Fast "C-04.6/cpuset" "the CPU set is in the cgroup" cpuset;
        Fast "C-04.6/pids-limit" "the limit of processes is in the cgroup" pids_limit;
        Fast "C-04.6/unified" "files of cgroup v2 are written" unified;
    }
}

async fn memory_limit(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.memory_limit(LIMIT);
    };
    let (plugin, _) = adjusted(s, change).await?;
    is_limited(&plugin, "p/c").await
}

/// Checks a value in the cgroup of an adjusted container, with its file and text on v1 and on v2.
async fn in_cgroup(
    s: &Stage,
    change: impl Fn(&mut ContainerAdjustment) + Send + Sync + 'static,
    controller: &str,
    (v1, of_v1): (&str, &str),
    (v2, of_v2): (&str, &str),
) -> Checked {
    let (plugin, _) = adjusted(s, change).await?;
    let pid = pid_of(&plugin, "p/c").await?;
    if let Some(seen) = look::of_cgroup(pid, controller, v1, "none") {
        return same(v1, of_v1, seen.as_str());
    }
    match look::of_cgroup(pid, controller, "none", v2) {
        Some(seen) => same(v2, of_v2, seen.as_str()),
        None => skip(format!("the file {v1} or {v2} in cgroups of this host")),
    }
}

async fn memory_reservation(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.memory_reservation(LIMIT / 2);
    };
    let value = (LIMIT / 2).to_string();
    in_cgroup(
        s,
        change,
        "memory",
        ("memory.soft_limit_in_bytes", &value),
        ("memory.low", &value),
    )
    .await
}

async fn cpu_shares(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.cpu_shares(2048);
    };
    // 1 + (2048 - 2) * 9999 / 262142
    in_cgroup(
        s,
        change,
        "cpu",
        ("cpu.shares", "2048"),
        ("cpu.weight", "79"),
    )
    .await
}

async fn cpu_quota(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.cpu_quota(30_000).cpu_period(60_000);
    };
    in_cgroup(
        s,
        change,
        "cpu",
        ("cpu.cfs_quota_us", "30000"),
        ("cpu.max", "30000 60000"),
    )
    .await
}

async fn cpuset(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.cpuset_cpus("0");
    };
    in_cgroup(
        s,
        change,
        "cpuset",
        ("cpuset.cpus", "0"),
        ("cpuset.cpus", "0"),
    )
    .await
}

async fn pids_limit(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.pids_limit(77);
    };
    in_cgroup(s, change, "pids", ("pids.max", "77"), ("pids.max", "77")).await
}

async fn unified(s: &Stage) -> Checked {
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return skip("cgroup v2 on this host");
    }
    let change = |a: &mut ContainerAdjustment| {
        a.add_unified("memory.high", "67108864");
    };
    in_cgroup(
        s,
        change,
        "memory",
        ("none", ""),
        ("memory.high", "67108864"),
    )
    .await
}
