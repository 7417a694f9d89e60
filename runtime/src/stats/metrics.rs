//! Descriptors and samples of metrics (CRI-157, CRI-158). Both come from one table, so that a
//! sample's labels match its descriptor by construction. Pure.

use super::families::{FAMILIES, Family, LABELS, Source};
use super::reading::{Container, Pod, Reading};
use proto_cri::v1 as cri;

/// All metrics that [`pod`] may return.
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
        // 0 means just now.
        timestamp: 0,
        metric_type: family.kind.into(),
        label_values,
        value: Some(cri::UInt64Value { value }),
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
