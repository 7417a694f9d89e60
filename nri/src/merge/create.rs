//! Merging the answers to one CreateContainer. `sides.rs` applies an adjustment.

use proto_nri::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, CreateContainerRequest,
    CreateContainerResponse, Hooks, PodSandbox,
};

use super::{
    error::MergeError,
    keyed::{Claims, Freed},
    resources,
    sides::Sides,
    update::{Askers, EvictSet, MergedStop, UpdateSet},
};
use crate::{
    owners::{ContainerOwners, Owners},
    plugin_id::PluginId,
};

/// The merge of one CreateContainer.
#[derive(Debug)]
pub struct CreateMerge {
    /// The request for the next plugin.
    request: CreateContainerRequest,
    /// The container in the request to the first plugin.
    pristine: Container,
    reply: ContainerAdjustment,
    owners: ContainerOwners,
    freed: Freed,
    updates: UpdateSet,
    evict: EvictSet,
}

/// Merged answers to one CreateContainer.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedCreate {
    pub pod: Option<PodSandbox>,
    /// The container as the first plugin saw it, for validators (NRI-601).
    pub container: Container,
    /// The container with all adjustments, as later events have it.
    pub adjusted: Container,
    /// For the container being created; hooks, linux and its resources are always present.
    pub adjust: ContainerAdjustment,
    /// For other containers, to be applied before this one is created.
    pub update: Vec<ContainerUpdate>,
    pub evict: Vec<ContainerEviction>,
    pub owners: Owners,
    pub askers: Askers,
}

impl CreateMerge {
    /// Fills in the messages that are always present on the wire (NRI-407).
    pub fn new(mut request: CreateContainerRequest) -> Self {
        let container = request.container.get_or_insert_default();
        container.hooks.get_or_insert_default();
        let linux = container.linux.get_or_insert_default();
        resources::normalise(linux.resources.get_or_insert_default());
        let pristine = container.clone();
        let mut reply = ContainerAdjustment {
            hooks: Some(Hooks::default()),
            ..Default::default()
        };
        let linux = reply.linux.get_or_insert_default();
        resources::normalise(linux.resources.get_or_insert_default());
        Self {
            owners: ContainerOwners::new(pristine.id.as_str()),
            request,
            pristine,
            reply,
            freed: Freed::default(),
            updates: UpdateSet::default(),
            evict: EvictSet::default(),
        }
    }

    /// The request for the next plugin.
    pub fn request(&self) -> &CreateContainerRequest {
        &self.request
    }

    /// The values set so far, without the environment.
    pub(crate) fn adjustment(&mut self) -> ContainerAdjustment {
        let env = std::mem::take(&mut self.reply.env);
        let adjustment = self.reply.clone();
        self.reply.env = env;
        adjustment
    }

    /// The owners so far.
    pub fn owners(&self) -> &ContainerOwners {
        &self.owners
    }

    /// Merges the answer of `plugin`: the adjustment in the order of NRI-506, then the updates,
    /// then the evictions. The first error wins.
    pub fn apply(
        &mut self,
        plugin: &PluginId,
        answer: CreateContainerResponse,
    ) -> Result<(), MergeError> {
        let CreateContainerResponse {
            adjust,
            update,
            evict,
        } = answer;
        if let Some(adjust) = adjust {
            self.sides(plugin).adjust(adjust)?;
        }
        for update in update {
            if update.container_id == self.pristine.id {
                return Err(MergeError::UpdatesCreated {
                    plugin: plugin.clone(),
                    container: update.container_id,
                });
            }
            self.updates.add(plugin, update)?;
        }
        for eviction in evict {
            if eviction.container_id == self.pristine.id {
                return Err(MergeError::EvictsCreated {
                    plugin: plugin.clone(),
                    container: eviction.container_id,
                });
            }
            self.evict.add(plugin, eviction);
        }
        Ok(())
    }

    /// The merged answer.
    pub fn finish(self) -> MergedCreate {
        let MergedStop {
            update,
            mut owners,
            mut askers,
        } = self.updates.finish();
        owners.put(self.owners);
        MergedCreate {
            pod: self.request.pod,
            container: self.pristine,
            adjusted: self.request.container.unwrap_or_default(),
            adjust: self.reply,
            update,
            evict: self.evict.finish(&mut askers),
            owners,
            askers,
        }
    }

    fn sides<'a>(&'a mut self, plugin: &'a PluginId) -> Sides<'a> {
        Sides {
            claims: Claims {
                owners: &mut self.owners,
                freed: &mut self.freed,
                plugin,
            },
            pristine: &self.pristine,
            request: self.request.container.get_or_insert_default(),
            reply: &mut self.reply,
        }
    }
}
