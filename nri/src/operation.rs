//! Differences between operations: the request for the next plugin, the effects of its answer, and
//! the runtime's result.
//!
//! Every answer is reduced to the plugin's permitted fields before it reaches a merge.

use std::net::IpAddr;

use proto_nri::{
    ContainerAdjustment, ContainerUpdate, CreateContainerRequest, CreateContainerResponse, Event,
    RunPodSandboxRequest, RunPodSandboxResponse, StopContainerRequest, StopContainerResponse,
    UpdateContainerRequest, UpdateContainerResponse,
};

use crate::{
    adjust::HookKind,
    mask::FieldMask,
    merge::{
        self, CreateMerge, MergedCreate, MergedStop, MergedUpdate, RunMerge, StopMerge, UpdateMerge,
    },
    observe::Delivery,
    permit::Sets,
    plugin_id::PluginId,
    policy::{Outcome, PluginPolicy},
    shorten::LeftOut,
    wire::event::HookRequest,
};

/// A setup event that a plugin rejected, or that a required plugin did not answer.
///
/// The runtime must undo its step, and notify all plugins by the stop and remove events.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// The event.
    pub event: Event,
    /// One line that names plugin, event and cause.
    pub reason: String,
    /// The outcomes of the plugins called so far.
    pub deliveries: Vec<Delivery>,
}

/// Result of an event without answers.
#[derive(Debug, Clone, Default)]
pub struct Notified {
    /// In call order.
    pub deliveries: Vec<Delivery>,
    /// Every plugin was notified and nothing was stopped, but a plugin with `fail_request` did not
    /// answer. The runtime finishes its step, and then returns this error.
    pub failed: Option<String>,
}

/// Result of RunPodSandbox.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Ran {
    /// Addresses that plugins gave the pod, in the order of their answers; empty without
    /// [`Settings::pod_ips`](crate::Settings::pod_ips).
    pub ips: Vec<IpAddr>,
    /// In call order.
    pub deliveries: Vec<Delivery>,
}

/// Result of CreateContainer.
#[derive(Debug, Clone)]
pub struct Created {
    /// Apply `evict`, then `update` (failures are logged), then `adjust`.
    pub merged: MergedCreate,
    /// In call order, validators last.
    pub deliveries: Vec<Delivery>,
}

/// Result of UpdateContainer.
#[derive(Debug, Clone)]
pub struct Updated {
    /// Apply `others` first, then `target`, or the request's own resources if it is `None`.
    pub merged: MergedUpdate,
    pub deliveries: Vec<Delivery>,
}

/// Result of StopContainer.
#[derive(Debug, Clone, Default)]
pub struct Stopped {
    /// Updates of other containers.
    pub merged: MergedStop,
    pub deliveries: Vec<Delivery>,
    /// As [`Notified::failed`].
    pub failed: Option<String>,
}

/// The contents of an answer.
#[derive(Debug, Default, Clone)]
pub struct AnswerContents {
    pub adjusted: bool,
    /// Names of the fields it set in the pod or the container being created.
    pub changed: Vec<String>,
    /// As [`Delivery::adjustment`].
    pub adjustment: Option<Box<ContainerAdjustment>>,
    pub updates: usize,
    pub evictions: usize,
    /// Fields left out of its request.
    pub left_out: Vec<LeftOut>,
}

/// One operation: its request for the next plugin, and its treatment of the answer.
pub trait Operation: Send {
    type Request: HookRequest;

    fn request(&self) -> &Self::Request;

    /// Merges an answer, or returns why it is invalid.
    fn take(
        &mut self,
        plugin: &PluginId,
        policy: &PluginPolicy,
        reply: <Self::Request as HookRequest>::Reply,
    ) -> Result<AnswerContents, Outcome>;

    /// The values set so far, for an observer, without variables, which may be secrets.
    fn adjustment(&mut self) -> Option<Box<ContainerAdjustment>> {
        None
    }
}

/// The same request for every plugin, with empty answers.
pub(crate) struct Plain<R>(pub(crate) R);

impl<R: HookRequest> Operation for Plain<R> {
    type Request = R;

    fn request(&self) -> &R {
        &self.0
    }

    fn take(
        &mut self,
        _: &PluginId,
        _: &PluginPolicy,
        _: R::Reply,
    ) -> Result<AnswerContents, Outcome> {
        Ok(AnswerContents::default())
    }
}

fn permit(policy: &PluginPolicy, answer: &impl Sets) -> Result<(), Outcome> {
    if policy.fields == FieldMask::ALL {
        return Ok(());
    }
    let denied = answer.sets() - policy.fields;
    if denied.is_empty() {
        return Ok(());
    }
    Err(Outcome::Denied(format!("it may not change {denied}")))
}

/// RunPodSandbox and its addresses.
pub struct Run {
    pub merge: RunMerge,
    /// [`Settings::pod_ips`](crate::Settings::pod_ips).
    pub takes_ips: bool,
}

impl Operation for Run {
    type Request = RunPodSandboxRequest;

    fn request(&self) -> &RunPodSandboxRequest {
        self.merge.request()
    }

    fn take(
        &mut self,
        plugin: &PluginId,
        policy: &PluginPolicy,
        reply: RunPodSandboxResponse,
    ) -> Result<AnswerContents, Outcome> {
        if merge::asked(&reply).is_empty() {
            return Ok(AnswerContents::default());
        }
        // Like every runtime of NRI v0.12.5, which lacks this field.
        if !self.takes_ips {
            tracing::warn!(%plugin, "adjust.network.ips in the answer to RunPodSandbox ignored: not switched on");
            return Ok(AnswerContents::default());
        }
        permit(policy, &reply)?;
        let given = self.merge.apply(plugin, reply);
        let given = given.map_err(|e| e.outcome())?;
        Ok(AnswerContents {
            adjusted: !given.is_empty(),
            changed: given.iter().map(|ip| format!("ip {ip}")).collect(),
            ..AnswerContents::default()
        })
    }
}

impl Operation for CreateMerge {
    type Request = CreateContainerRequest;

    fn request(&self) -> &CreateContainerRequest {
        Self::request(self)
    }

    fn take(
        &mut self,
        plugin: &PluginId,
        policy: &PluginPolicy,
        reply: CreateContainerResponse,
    ) -> Result<AnswerContents, Outcome> {
        permit(policy, &reply)?;
        let mut contents = AnswerContents {
            adjusted: reply.adjust.is_some(),
            updates: reply.update.len(),
            evictions: reply.evict.len(),
            ..AnswerContents::default()
        };
        let taken = self.apply(plugin, reply);
        if contents.adjusted {
            contents.changed = self.owners().set_by(plugin);
        }
        taken.map_err(|e| e.outcome())?;
        Ok(contents)
    }

    fn adjustment(&mut self) -> Option<Box<ContainerAdjustment>> {
        let mut adjustment = Self::adjustment(self);
        let hooks = adjustment.hooks.get_or_insert_default();
        for kind in HookKind::ALL {
            kind.of(hooks).iter_mut().for_each(|hook| hook.env.clear());
        }
        Some(Box::new(adjustment))
    }
}

impl Operation for UpdateMerge {
    type Request = UpdateContainerRequest;

    fn request(&self) -> &UpdateContainerRequest {
        Self::request(self)
    }

    fn take(
        &mut self,
        plugin: &PluginId,
        policy: &PluginPolicy,
        reply: UpdateContainerResponse,
    ) -> Result<AnswerContents, Outcome> {
        permit(policy, &reply)?;
        let contents = AnswerContents {
            updates: reply.update.len(),
            evictions: reply.evict.len(),
            ..AnswerContents::default()
        };
        self.apply(plugin, reply).map_err(|e| e.outcome())?;
        Ok(contents)
    }
}

/// StopContainer: its request and its updates.
pub struct Stop {
    pub request: StopContainerRequest,
    pub merge: StopMerge,
}

impl Operation for Stop {
    type Request = StopContainerRequest;

    fn request(&self) -> &StopContainerRequest {
        &self.request
    }

    fn take(
        &mut self,
        plugin: &PluginId,
        policy: &PluginPolicy,
        reply: StopContainerResponse,
    ) -> Result<AnswerContents, Outcome> {
        permit(policy, &reply)?;
        let contents = AnswerContents {
            updates: reply.update.len(),
            ..AnswerContents::default()
        };
        for conflict in self.merge.apply(plugin, reply.update) {
            tracing::warn!(%plugin, %conflict, "update in the answer to StopContainer skipped");
        }
        Ok(contents)
    }
}

/// Unsolicited updates that the plugin may make, and the others, which fail.
pub fn permitted_updates(
    plugin: &PluginId,
    policy: &PluginPolicy,
    updates: Vec<ContainerUpdate>,
) -> (Vec<ContainerUpdate>, Vec<ContainerUpdate>) {
    let mut failed = Vec::new();
    let mut granted = Vec::new();
    for update in updates {
        match permit(policy, &update) {
            Ok(()) => granted.push(update),
            Err(denied) => {
                tracing::warn!(%plugin, container = update.container_id, ?denied, "refused an update");
                failed.push(update);
            }
        }
    }
    (granted, failed)
}
