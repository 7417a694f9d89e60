//! Shared by the statistics RPCs: records in, numbers out. The files of one list are read in one
//! batch, outside of the serving threads (goal: 100 containers in 15 ms).
//!
//! Records are snapshots; no pod's queue is used. Vanished objects have no numbers, and do not fail
//! the list (CRI-150).

use std::{collections::HashMap, sync::Arc, thread};

use cni_shim::namespaces;
use futures_util::future::join_all;
use proto_cri::v1 as cri;

use crate::{
    blocking::blocking,
    cgroup::{Detail, Stats},
    clock,
    pod::{
        pods::Pods,
        record::{ContainerPhase, ContainerRecord, PodRecord},
        state::Pod,
    },
    stats::{self, Interface, LayerUsage, Layers, Sample, Sampler, convert, machine, metrics},
};

type LayersById = HashMap<String, LayerUsage>;

/// Limit of threads that read for one list.
const THREADS: usize = 4;
/// One thread reads this many items or fewer.
const PART: usize = 32;

/// A pod and its containers at one time.
struct Snapshot {
    pod: Arc<PodRecord>,
    containers: Vec<Arc<ContainerRecord>>,
}

impl Snapshot {
    fn of(pod: &Arc<Pod>) -> Self {
        Self {
            containers: pod.visible_containers(),
            pod: pod.cell.get(),
        }
    }
}

/// The readers of statistics.
pub struct Statistics {
    pub pods: Arc<Pods>,
    pub sampler: Sampler,
    /// Usage of the writable layers.
    pub layers: Layers,
}

impl Statistics {
    /// ContainerStats of each container, in order (CRI-151).
    pub async fn of_containers(
        self: &Arc<Self>,
        records: Vec<Arc<ContainerRecord>>,
    ) -> Vec<cri::ContainerStats> {
        let layers = layers(self, records.iter()).await;
        let all = Arc::clone(self);
        each(records, move |record| {
            container_stats(&all, record, &layers)
        })
        .await
    }

    /// PodSandboxStats of each pod, in order (CRI-156).
    pub async fn of_pods(self: &Arc<Self>, pods: &[Arc<Pod>]) -> Vec<cri::PodSandboxStats> {
        let snapshots: Vec<_> = pods.iter().map(Snapshot::of).collect();
        let layers = layers(self, snapshots.iter().flat_map(|pod| &pod.containers)).await;
        let all = Arc::clone(self);
        each(snapshots, move |snapshot| {
            pod_stats(&all, snapshot, &layers)
        })
        .await
    }

    /// PodSandboxMetrics of each pod, in order; only for running containers (CRI-157).
    pub async fn metrics(self: &Arc<Self>, pods: &[Arc<Pod>]) -> Vec<cri::PodSandboxMetrics> {
        let mut snapshots: Vec<_> = pods.iter().map(Snapshot::of).collect();
        for snapshot in &mut snapshots {
            let running = |record: &Arc<ContainerRecord>| record.phase == ContainerPhase::Running;
            snapshot.containers.retain(running);
        }
        let layers = layers(self, snapshots.iter().flat_map(|pod| &pod.containers)).await;
        let mountpoint = self.pods.node.images.fs_info().mountpoint;
        let filesystem = blocking(move || machine::filesystem(&mountpoint).ok()).await;
        let all = Arc::clone(self);
        each(snapshots, move |snapshot| {
            pod_metrics(&all, snapshot, &layers, filesystem.as_ref())
        })
        .await
    }
}

/// Applies `read` to each item, in order, on several threads, because it blocks on files.
async fn each<T, R>(items: Vec<T>, read: impl Fn(&T) -> R + Send + Sync + 'static) -> Vec<R>
where
    T: Send + Sync + 'static,
    R: Send + 'static,
{
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let part = items.len().div_ceil(threads.min(THREADS)).max(PART);
    let (items, read) = (Arc::new(items), Arc::new(read));
    let parts = (0..items.len()).step_by(part).map(|from| {
        let (items, read) = (Arc::clone(&items), Arc::clone(&read));
        blocking(move || {
            let items = items.iter().skip(from).take(part);
            items.map(|item| read(item)).collect::<Vec<_>>()
        })
    });
    join_all(parts).await.into_iter().flatten().collect()
}

async fn layers<'a>(
    all: &Arc<Statistics>,
    records: impl Iterator<Item = &'a Arc<ContainerRecord>>,
) -> LayersById {
    let ids: Vec<_> = records.map(|record| record.id.clone()).collect();
    let walker = Arc::clone(all);
    let count = move |id: String| {
        let all = Arc::clone(&walker);
        async move {
            let usage = all.pods.node.images.rootfs_usage(&id).await.ok()?;
            // The filesystem of ImageFsInfo (CRI-155, CRI-176).
            let mountpoint = all.pods.node.images.fs_info().mountpoint;
            Some(LayerUsage {
                at_ns: clock::now_ns(),
                mountpoint: mountpoint.display().to_string(),
                used_bytes: usage.bytes,
                inodes_used: usage.inodes,
                is_whole: usage.is_whole,
            })
        }
    };
    all.layers.usage(&ids, count).await
}

/// Blocks on files. `None` for an invalid cgroup path; records contain none.
fn sample(all: &Statistics, id: &str, cgroup: &str, detail: Detail) -> Option<Sample> {
    let group = || all.pods.node.cgroup(cgroup).ok();
    let (cgroup, nano_cores) = all.sampler.watch(id, group)?;
    Some(Sample {
        at_ns: clock::now_ns(),
        stats: cgroup.stats(detail),
        nano_cores,
    })
}

fn container_stats(
    all: &Statistics,
    record: &ContainerRecord,
    layers: &LayersById,
) -> cri::ContainerStats {
    let attributes = cri::ContainerAttributes {
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
    };
    let sample = match record.phase {
        ContainerPhase::Running | ContainerPhase::Unknown => {
            sample(all, &record.id, &record.cgroup, Detail::Usage)
        }
        ContainerPhase::Creating | ContainerPhase::Created | ContainerPhase::Exited => None,
    };
    convert::container(attributes, sample.as_ref(), layers.get(&record.id))
}

fn pod_stats(all: &Statistics, snapshot: &Snapshot, layers: &LayersById) -> cri::PodSandboxStats {
    let record = &snapshot.pod;
    let attributes = cri::PodSandboxAttributes {
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
    };
    let sample = sample(all, &record.id, &record.cgroup_parent, Detail::Pod);
    let containers = snapshot
        .containers
        .iter()
        .map(|record| container_stats(all, record, layers))
        .collect();
    convert::pod(
        attributes,
        &sample.unwrap_or_default(),
        interfaces(record).as_deref(),
        containers,
    )
}

/// `None` for a pod in the host's network, or whose network was removed.
fn interfaces(record: &PodRecord) -> Option<Vec<Interface>> {
    let links = namespaces::interfaces(record.namespaces.net.as_deref()?).ok()?;
    let interface = |(name, counters)| Interface { name, counters };
    Some(links.into_iter().map(interface).collect())
}

/// A container's sample, for its metrics.
struct Reading<'a> {
    record: &'a ContainerRecord,
    stats: Stats,
    processes: machine::Processes,
}

impl<'a> Reading<'a> {
    fn of(all: &Statistics, record: &'a ContainerRecord) -> Option<Self> {
        let group = || all.pods.node.cgroup(&record.cgroup).ok();
        let (cgroup, _) = all.sampler.watch(&record.id, group)?;
        Some(Self {
            record,
            stats: cgroup.stats(Detail::All),
            processes: machine::processes(&cgroup.pids()),
        })
    }
}

fn pod_metrics(
    all: &Statistics,
    snapshot: &Snapshot,
    layers: &LayersById,
    filesystem: Option<&machine::Filesystem>,
) -> cri::PodSandboxMetrics {
    let readings: Vec<_> = snapshot
        .containers
        .iter()
        .filter_map(|record| Reading::of(all, record))
        .collect();
    let now_ns = clock::now_ns();
    let containers = readings
        .iter()
        .map(|reading| stats::Container {
            id: &reading.record.id,
            name: reading.record.name(),
            image: &reading.record.image.name,
            stats: &reading.stats,
            processes: reading.processes,
            layer: layers.get(&reading.record.id),
            filesystem,
            resources: Some(&reading.record.resources),
            started_ns: reading.record.started_at,
            now_ns,
            device_name: machine::device_name,
        })
        .collect();
    let metadata = snapshot.pod.metadata();
    metrics::pod(&stats::Pod {
        id: &snapshot.pod.id,
        name: &metadata.name,
        namespace: &metadata.namespace,
        interfaces: &interfaces(&snapshot.pod).unwrap_or_default(),
        containers,
    })
}
