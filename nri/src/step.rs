//! What differs between operations: the request the next plugin gets, and what its answer may do.
//!
//! Every answer is cut down to the plugin's permitted fields before it reaches a merge.

use proto_nri::{
    ContainerUpdate, CreateContainerRequest, CreateContainerResponse, StopContainerRequest,
    StopContainerResponse, UpdateContainerRequest, UpdateContainerResponse,
};

use crate::{
    event::HookRequest,
    mask::FieldMask,
    merge::{CreateMerge, StopMerge, UpdateMerge},
    owners::PluginId,
    permit::Restrict,
    policy::{OnDenied, Outcome, PluginPolicy},
};

/// What an answer carried.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Weight {
    pub(crate) adjusted: bool,
    pub(crate) updates: usize,
    pub(crate) evictions: usize,
}

/// One operation: what the next plugin is asked, and what becomes of its answer.
pub(crate) trait Step: Send {
    type Request: HookRequest;

    fn request(&self) -> &Self::Request;

    /// Takes an answer in, or says why it cannot stand.
    fn take(
        &mut self,
        plugin: &PluginId,
        policy: &PluginPolicy,
        reply: <Self::Request as HookRequest>::Reply,
    ) -> Result<Weight, Outcome>;
}

/// The same request for everyone, and nothing in the answers.
pub(crate) struct Plain<R>(pub(crate) R);

impl<R: HookRequest> Step for Plain<R> {
    type Request = R;

    fn request(&self) -> &R {
        &self.0
    }

    fn take(&mut self, _: &PluginId, _: &PluginPolicy, _: R::Reply) -> Result<Weight, Outcome> {
        Ok(Weight::default())
    }
}

fn permit<A: Restrict>(
    plugin: &PluginId,
    policy: &PluginPolicy,
    answer: &mut A,
) -> Result<(), Outcome> {
    if policy.fields == FieldMask::ALL {
        return Ok(());
    }
    let denied = answer.restrict(policy.fields);
    if denied.is_empty() {
        return Ok(());
    }
    match policy.on_denied {
        OnDenied::Fail => Err(Outcome::Denied(format!("it may not touch {denied}"))),
        OnDenied::Drop => {
            tracing::warn!(%plugin, %denied, "dropped what the plugin may not touch");
            Ok(())
        }
    }
}

impl Step for CreateMerge {
    type Request = CreateContainerRequest;

    fn request(&self) -> &CreateContainerRequest {
        Self::request(self)
    }

    fn take(
        &mut self,
        plugin: &PluginId,
        policy: &PluginPolicy,
        mut reply: CreateContainerResponse,
    ) -> Result<Weight, Outcome> {
        permit(plugin, policy, &mut reply)?;
        let weight = Weight {
            adjusted: reply.adjust.is_some(),
            updates: reply.update.len(),
            evictions: reply.evict.len(),
        };
        let taken = self.apply(plugin, reply);
        taken.map_err(|e| Outcome::Conflict(e.to_string()))?;
        Ok(weight)
    }
}

impl Step for UpdateMerge {
    type Request = UpdateContainerRequest;

    fn request(&self) -> &UpdateContainerRequest {
        Self::request(self)
    }

    fn take(
        &mut self,
        plugin: &PluginId,
        policy: &PluginPolicy,
        mut reply: UpdateContainerResponse,
    ) -> Result<Weight, Outcome> {
        permit(plugin, policy, &mut reply)?;
        let weight = Weight {
            updates: reply.update.len(),
            evictions: reply.evict.len(),
            ..Weight::default()
        };
        let taken = self.apply(plugin, reply);
        taken.map_err(|e| Outcome::Conflict(e.to_string()))?;
        Ok(weight)
    }
}

/// StopContainer: its request, and the updates it brings.
pub(crate) struct Stop {
    pub(crate) request: StopContainerRequest,
    pub(crate) merge: StopMerge,
}

impl Step for Stop {
    type Request = StopContainerRequest;

    fn request(&self) -> &StopContainerRequest {
        &self.request
    }

    fn take(
        &mut self,
        plugin: &PluginId,
        policy: &PluginPolicy,
        mut reply: StopContainerResponse,
    ) -> Result<Weight, Outcome> {
        permit(plugin, policy, &mut reply)?;
        let weight = Weight {
            updates: reply.update.len(),
            ..Weight::default()
        };
        for conflict in self.merge.apply(plugin, reply) {
            tracing::warn!(%plugin, %conflict, "left an update out of StopContainer");
        }
        Ok(weight)
    }
}

/// Cuts updates that came without a request down to what the plugin may do; the rest has failed.
pub(crate) fn permitted_updates(
    plugin: &PluginId,
    policy: &PluginPolicy,
    updates: Vec<ContainerUpdate>,
) -> (Vec<ContainerUpdate>, Vec<ContainerUpdate>) {
    let mut failed = Vec::new();
    let mut granted = Vec::new();
    for mut update in updates {
        let asked = update.clone();
        match permit(plugin, policy, &mut update) {
            Ok(()) => granted.push(update),
            Err(denied) => {
                tracing::warn!(%plugin, container = asked.container_id, ?denied, "refused an update");
                failed.push(asked);
            }
        }
    }
    (granted, failed)
}
