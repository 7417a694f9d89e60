//! C-12 and C-13.

use std::fs;

use nri::proto::{Event, LinuxResources};
use tonic::Code;

use crate::{
    cri::Pod,
    look,
    point::{Point, points},
    stage::Stage,
};
use testkit::{
    journal::listed,
    plugin::Behavior,
    verdict::{Answer, Checked, same, skip, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "C-12.1/says-what-is-asked" "UpdatePodSandbox has the requested resources" says_what_is_asked;
        Fast "C-12.1/before-anything-has-changed" "in UpdatePodSandbox, the pod has its old resources" before_anything;
        Fast "C-12.2/old-values-stay" "after a plugin's error the old resources stay" old_values_stay;
        Fast "C-12.3/no-cgroup-is-written" "the pod's cgroup parent is as the kubelet left it" no_cgroup_is_written;
        Fast "C-13.1/after-the-new-values" "PostUpdatePodSandbox comes when the new resources hold" after_the_new_values;
        Fast "C-13.2/not-after-a-failed-one" "there is no PostUpdatePodSandbox after a failed update" not_after_a_failed_one;
    }
}

/// Calls UpdatePodSandboxResources, if the runtime implements it.
pub(super) async fn update(pod: &Pod, shares: i64) -> Checked<Result<(), tonic::Status>> {
    match pod.update(shares).await {
        Err(status) if status.code() == Code::Unimplemented => {
            skip("the CRI call UpdatePodSandboxResources")
        }
        answer => Ok(answer),
    }
}

fn shares(resources: Option<&LinuxResources>) -> Option<u64> {
    let cpu = resources?.cpu.as_ref()?;
    Some(cpu.shares.as_ref()?.value)
}

/// Returns the pod's shares as plugins see them.
fn reported(pod: &nri::proto::PodSandbox) -> Option<u64> {
    shares(pod.linux.as_ref()?.pod_resources.as_ref())
}

async fn says_what_is_asked(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    update(&pod, 333)
        .await?
        .succeeds("UpdatePodSandboxResources")?;
    let seen = plugin.sees(Event::UpdatePodSandbox, "p").await?;
    let asked = shares(seen.resources.as_ref());
    same("the CPU shares in the request", Some(333), asked)
}

async fn before_anything(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    for shares in [222, 333] {
        update(&pod, shares)
            .await?
            .succeeds("UpdatePodSandboxResources")?;
    }
    let seen = plugin.seen();
    let second = seen.iter().rfind(|s| s.event == Event::UpdatePodSandbox);
    let shares = second.and_then(|seen| reported(&seen.pod));
    same(
        "the pod's CPU shares in the second UpdatePodSandbox",
        Some(222),
        shares,
    )
}

async fn old_values_stay(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    update(&pod, 222)
        .await?
        .succeeds("UpdatePodSandboxResources")?;
    plugin.does(Event::UpdatePodSandbox, Behavior::Error("no".into()));
    update(&pod, 333)
        .await?
        .fails("UpdatePodSandboxResources")?;
    plugin.behaves();
    pod.stop().await.succeeds("StopPodSandbox")?;
    let seen = plugin.sees(Event::StopPodSandbox, "p").await?.pod;
    same(
        "the pod's CPU shares afterwards",
        Some(222),
        reported(&seen),
    )
}

async fn no_cgroup_is_written(s: &Stage) -> Checked {
    let pod = s.pod("p").await?;
    let weights = || {
        let dirs = look::cgroup_dirs(&s.run.common.cgroup_parent);
        let files = dirs
            .iter()
            .flat_map(|dir| ["cpu.shares", "cpu.weight"].map(|f| dir.join(f)));
        files
            .filter_map(|f| fs::read_to_string(f).ok())
            .collect::<Vec<_>>()
    };
    let before = weights();
    if before.is_empty() {
        return skip("the cpu controller for the pod's cgroup parent");
    }
    update(&pod, 333)
        .await?
        .succeeds("UpdatePodSandboxResources")?;
    same("CPU weight of the pod's cgroup parent", before, weights())
}

async fn after_the_new_values(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    update(&pod, 333)
        .await?
        .succeeds("UpdatePodSandboxResources")?;
    let seen = plugin.sees(Event::PostUpdatePodSandbox, "p").await?.pod;
    same(
        "the pod's CPU shares in PostUpdatePodSandbox",
        Some(333),
        reported(&seen),
    )
}

async fn not_after_a_failed_one(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    let pod = s.pod("p").await?;
    plugin.does(Event::UpdatePodSandbox, Behavior::Error("no".into()));
    update(&pod, 333)
        .await?
        .fails("UpdatePodSandboxResources")?;
    // Later events show that the update causes no further ones.
    pod.ends().await?;
    plugin.sees(Event::RemovePodSandbox, "p").await?;
    let post = plugin.count(Event::PostUpdatePodSandbox, "p");
    that(
        post == 0,
        "no PostUpdatePodSandbox",
        listed(&plugin.lines()),
    )
}
