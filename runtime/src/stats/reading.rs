//! Readings of a container or pod, before they are converted to CRI's messages.

use cni_shim::Counters;
use proto_cri::v1 as cri;

use super::machine::{Filesystem, Processes};
use crate::cgroup::Stats;

/// One reading of a cgroup.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Time of the reading in ns since the epoch; strictly increasing (CRI-153).
    pub at_ns: i64,
    pub stats: Stats,
    /// CPU time per second in ns, from [`super::Sampler::watch`]; `None` before the first rate.
    pub nano_cores: Option<u64>,
}

/// Disk usage of a container's writable layer (CRI-155).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerUsage {
    pub at_ns: i64,
    /// A directory on the filesystem of the snapshots, such as the store's root.
    pub mountpoint: String,
    pub used_bytes: u64,
    pub inodes_used: u64,
    /// Fully counted; otherwise a lower bound.
    pub is_whole: bool,
}

/// One interface in a pod's network namespace, as `cni_shim` reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub counters: Counters,
}

/// One sample of a metric: the values of the extra labels, and the number.
pub(super) type Reading = (Vec<String>, u64);

/// Reading of a running container.
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
    /// As created or last updated.
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
    /// A requested number; 0 means "not set" in CRI.
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
