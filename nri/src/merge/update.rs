//! Merges updates of existing containers, and evictions (NRI-540…570).

use std::collections::BTreeMap;

use proto_nri::{
    ContainerEviction, ContainerUpdate, LinuxContainerUpdate, LinuxResources,
    UpdateContainerRequest, UpdateContainerResponse,
};

use super::{error::MergeError, resources};
use crate::{
    owners::{Conflict, ContainerOwners, Owners},
    plugin_id::PluginId,
    wire::rpc::one_line,
};

/// One plugin's part of the merged update of a container. The values of two plugins never overlap.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    pub plugin: PluginId,
    pub update: ContainerUpdate,
}

/// Requesters per container, including those of updates without a value, which have no owner.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Askers {
    updates: BTreeMap<String, Vec<Share>>,
    evictions: BTreeMap<String, Vec<PluginId>>,
}

impl Askers {
    /// In call order.
    pub fn of_update(&self, container: &str) -> Vec<PluginId> {
        let mut plugins: Vec<PluginId> = Vec::new();
        for share in self.shares(container) {
            if !plugins.contains(&share.plugin) {
                plugins.push(share.plugin.clone());
            }
        }
        plugins
    }

    /// The merged update of a container by plugin, in call order.
    pub fn shares(&self, container: &str) -> &[Share] {
        self.updates.get(container).map_or(&[], Vec::as_slice)
    }

    /// In call order.
    pub fn of_eviction(&self, container: &str) -> &[PluginId] {
        self.evictions.get(container).map_or(&[], Vec::as_slice)
    }
}

/// Updates of any number of containers, one entry each, in order of first mention (NRI-541).
#[derive(Debug, Default)]
pub(super) struct UpdateSet {
    entries: Vec<Entry>,
    by_id: BTreeMap<String, usize>,
}

/// One container's updates so far.
#[derive(Debug, Default)]
struct Entry {
    owners: ContainerOwners,
    resources: LinuxResources,
    /// AND over all plugins (NRI-543).
    ignore_failure: bool,
    /// Of the plugins that mentioned it.
    shares: Vec<Share>,
}

impl Entry {
    fn new(id: &str, resources: LinuxResources) -> Self {
        Self {
            owners: ContainerOwners::new(id),
            resources,
            ignore_failure: true,
            shares: Vec::new(),
        }
    }

    /// Claims for `plugin` all that the update sets, and overwrites it; or changes nothing. Device
    /// rules cannot be updated (NRI-547).
    fn update(
        &mut self,
        plugin: &PluginId,
        mut update: ContainerUpdate,
    ) -> Result<(), Box<Conflict>> {
        let linux = update.linux.get_or_insert_default();
        let wanted = linux.resources.get_or_insert_default();
        resources::claim(&mut self.owners, plugin, wanted)?;
        wanted.devices.clear();
        resources::overlay(&mut self.resources, wanted.clone());
        self.ignore_failure &= update.ignore_failure;
        let plugin = plugin.clone();
        self.shares.push(Share { plugin, update });
        Ok(())
    }
}

impl UpdateSet {
    /// Merges one update completely or not at all. A conflict of an update with `ignore_failure` is
    /// not an error: the update and its claims are left out (NRI-543).
    pub(super) fn add(
        &mut self,
        plugin: &PluginId,
        update: ContainerUpdate,
    ) -> Result<(), Box<Conflict>> {
        let mut fresh;
        let known = self.by_id.get(&update.container_id).copied();
        let entry = match known {
            Some(n) => &mut self.entries[n],
            None => {
                fresh = Entry::new(&update.container_id, LinuxResources::default());
                &mut fresh
            }
        };
        let ignore_failure = update.ignore_failure;
        match entry.update(plugin, update) {
            Err(_) if ignore_failure => return Ok(()),
            taken => taken?,
        }
        if known.is_none() {
            let entry = std::mem::take(entry);
            self.push(entry);
        }
        Ok(())
    }

    /// Adds the first entry of a container.
    fn push(&mut self, entry: Entry) {
        let id = entry.owners.id.clone();
        self.by_id.insert(id, self.entries.len());
        self.entries.push(entry);
    }

    /// The merged updates in order of first mention.
    pub(super) fn finish(self) -> MergedStop {
        let mut merged = MergedStop::default();
        let touched = self.entries.into_iter();
        for entry in touched.filter(|entry| !entry.shares.is_empty()) {
            let container_id = entry.owners.id.clone();
            merged.owners.put(entry.owners);
            let id = container_id.clone();
            merged.askers.updates.insert(id, entry.shares);
            merged.update.push(ContainerUpdate {
                container_id,
                linux: Some(LinuxContainerUpdate {
                    resources: Some(entry.resources),
                }),
                ignore_failure: entry.ignore_failure,
            });
        }
        merged
    }
}

/// Evictions, one per container: the first reason, later ones joined with `; ` (NRI-570).
#[derive(Debug, Default)]
pub(super) struct EvictSet {
    entries: Vec<ContainerEviction>,
    askers: BTreeMap<String, Vec<PluginId>>,
    by_id: BTreeMap<String, usize>,
}

impl EvictSet {
    pub(super) fn add(&mut self, plugin: &PluginId, mut eviction: ContainerEviction) {
        let id = eviction.container_id.clone();
        let askers = self.askers.entry(id).or_default();
        if !askers.contains(plugin) {
            askers.push(plugin.clone());
        }
        // The reason appears in logs and in the container's status.
        eviction.reason = one_line(&eviction.reason);
        let Some(n) = self.by_id.get(&eviction.container_id) else {
            let id = eviction.container_id.clone();
            self.by_id.insert(id, self.entries.len());
            self.entries.push(eviction);
            return;
        };
        let reason = &mut self.entries[*n].reason;
        if !reason.is_empty() && !eviction.reason.is_empty() {
            reason.push_str("; ");
        }
        reason.push_str(&eviction.reason);
    }

    pub(super) fn finish(self, askers: &mut Askers) -> Vec<ContainerEviction> {
        askers.evictions = self.askers;
        self.entries
    }
}

/// The merge of one UpdateContainer.
#[derive(Debug)]
pub struct UpdateMerge {
    request: UpdateContainerRequest,
    updates: UpdateSet,
    evict: EvictSet,
}

/// Merged answers to one UpdateContainer.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedUpdate {
    /// For the container of the request: its resources with the plugins' values merged. `None` if
    /// no plugin changed it: then the request's values apply (NRI-545, mended).
    pub target: Option<LinuxResources>,
    /// For other containers, to be applied before the target.
    pub others: Vec<ContainerUpdate>,
    pub evict: Vec<ContainerEviction>,
    pub owners: Owners,
    pub askers: Askers,
}

impl UpdateMerge {
    /// Fills in linux_resources, its memory and cpu, always present on the wire (NRI-407).
    pub fn new(mut request: UpdateContainerRequest) -> Self {
        resources::normalise(request.linux_resources.get_or_insert_default());
        let mut updates = UpdateSet::default();
        let wanted = request.linux_resources.clone().unwrap_or_default();
        updates.push(Entry::new(target_id(&request), wanted));
        Self {
            request,
            updates,
            evict: EvictSet::default(),
        }
    }

    /// The request for the next plugin.
    pub fn request(&self) -> &UpdateContainerRequest {
        &self.request
    }

    /// Merges the answer of `plugin`.
    pub fn apply(
        &mut self,
        plugin: &PluginId,
        answer: UpdateContainerResponse,
    ) -> Result<(), MergeError> {
        let UpdateContainerResponse { update, evict } = answer;
        for update in update {
            self.updates.add(plugin, update)?;
        }
        for eviction in evict {
            self.evict.add(plugin, eviction);
        }
        if let Some(target) = self.updates.entries.first() {
            self.request.linux_resources = Some(target.resources.clone());
        }
        Ok(())
    }

    /// The merged answer.
    pub fn finish(self) -> MergedUpdate {
        let id = target_id(&self.request);
        let MergedStop {
            update,
            owners,
            mut askers,
        } = self.updates.finish();
        let (target, others): (Vec<_>, Vec<_>) =
            update.into_iter().partition(|u| u.container_id == id);
        let target = target.into_iter().next().and_then(|u| u.linux);
        MergedUpdate {
            target: target.and_then(|linux| linux.resources),
            others,
            evict: self.evict.finish(&mut askers),
            owners,
            askers,
        }
    }
}

fn target_id(request: &UpdateContainerRequest) -> &str {
    request.container.as_ref().map_or("", |c| c.id.as_str())
}

/// The merge of one StopContainer, or of the updates that several plugins request when they are
/// synchronised together at start-up. A conflict fails neither: the earlier update stays, the later
/// one is left out and reported (NRI-317, NRI-410).
#[derive(Debug, Default)]
pub struct StopMerge {
    updates: UpdateSet,
}

/// A merged set of updates: the complete result of StopContainer or start-up, a part of other
/// merges.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MergedStop {
    pub update: Vec<ContainerUpdate>,
    pub owners: Owners,
    pub askers: Askers,
}

impl StopMerge {
    pub fn new() -> Self {
        Self::default()
    }

    /// Merges the updates of `plugin`; returns the conflicts of those left out.
    pub fn apply(&mut self, plugin: &PluginId, updates: Vec<ContainerUpdate>) -> Vec<Conflict> {
        updates
            .into_iter()
            .filter_map(|update| self.updates.add(plugin, update).err())
            .map(|conflict| *conflict)
            .collect()
    }

    /// The merged answer.
    pub fn finish(self) -> MergedStop {
        self.updates.finish()
    }
}
