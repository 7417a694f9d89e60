//! Pure: descriptors and samples of metrics (CRI-157, CRI-158). Both come from one table, so that a
//! sample has its descriptor's labels by construction.

use super::families::{FAMILIES, Family, LABELS, Reading, Source};
use super::machine::{Filesystem, Processes};
use super::{Interface, LayerUsage};
use crate::cgroup::Stats;
use proto_cri::v1 as cri;

/// What is known of a running container.
#[derive(Debug)]
pub struct Container<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub image: &'a str,
    /// With [`Detail::All`](crate::cgroup::Detail::All).
    pub stats: &'a Stats,
    pub processes: Processes,
    pub layer: Option<&'a LayerUsage>,
    pub filesystem: Option<&'a Filesystem>,
    /// As the container was created or last updated.
    pub resources: Option<&'a cri::LinuxContainerResources>,
    /// Times in ns since the epoch.
    pub started_ns: i64,
    pub now_ns: i64,
    /// [`device_name`](super::machine::device_name), or another one in tests.
    pub device_name: fn(u32, u32) -> String,
}

/// A pod with its running containers.
#[derive(Debug)]
pub struct Pod<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub namespace: &'a str,
    /// Empty for a pod in the host's network.
    pub interfaces: &'a [Interface],
    pub containers: Vec<Container<'a>>,
}

impl Container<'_> {
    /// A number that was asked for; 0 means "not set" in CRI.
    pub(super) fn asked(&self, read: fn(&cri::LinuxContainerResources) -> i64) -> Option<u64> {
        let value = u64::try_from(read(self.resources?)).ok()?;
        (value > 0).then_some(value)
    }

    /// A number of the filesystem with the writable layer, labelled by its device.
    pub(super) fn on_device(&self, read: impl Fn(&Filesystem) -> u64) -> Vec<Reading> {
        let label = |f: &Filesystem| (vec![f.device.clone()], read(f));
        self.filesystem.map(label).into_iter().collect()
    }
}

/// All metrics that [`pod`] may give.
pub fn descriptors() -> Vec<cri::MetricDescriptor> {
    let one = |family: &Family| cri::MetricDescriptor {
        name: family.name.to_owned(),
        help: family.help.to_owned(),
        label_keys: labels(family).map(str::to_owned).collect(),
    };
    FAMILIES.iter().map(one).collect()
}

/// A pod's samples: its network at the pod, everything else at its containers.
pub fn pod(pod: &Pod<'_>) -> cri::PodSandboxMetrics {
    let mut metrics = Vec::new();
    for family in FAMILIES {
        if let Source::Pod(read) = &family.source {
            let common = [pod.name, pod.namespace, "", pod.id, ""];
            metrics.extend(read(pod).into_iter().map(|r| sample(family, common, r)));
        }
    }
    cri::PodSandboxMetrics {
        pod_sandbox_id: pod.id.to_owned(),
        metrics,
        container_metrics: pod.containers.iter().map(|c| container(pod, c)).collect(),
    }
}

fn container(pod: &Pod<'_>, container: &Container<'_>) -> cri::ContainerMetrics {
    let mut metrics = Vec::new();
    let Container {
        id, name, image, ..
    } = *container;
    for family in FAMILIES {
        if let Source::Container(read) = &family.source {
            let common = [pod.name, pod.namespace, name, id, image];
            metrics.extend(
                read(container)
                    .into_iter()
                    .map(|r| sample(family, common, r)),
            );
        }
    }
    cri::ContainerMetrics {
        container_id: id.to_owned(),
        metrics,
    }
}

fn labels(family: &Family) -> impl Iterator<Item = &'static str> {
    LABELS.iter().chain(family.labels).copied()
}

fn sample(family: &Family, common: [&str; 5], (extra, value): Reading) -> cri::Metric {
    let label_values = common.map(str::to_owned).into_iter().chain(extra).collect();
    cri::Metric {
        name: family.name.to_owned(),
        // 0: read just now.
        timestamp: 0,
        metric_type: family.kind.into(),
        label_values,
        value: Some(cri::UInt64Value { value }),
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
