//! The one generic call: an event to a plugin, whatever its transport, version and style.

use std::{sync::Arc, time::Duration};

use prost::Message;
use proto_nri::{Event, StateChangeEvent};
use tokio::time::Instant;

use crate::{
    plugin_side::handlers::{PluginService, method},
    violate,
    wire::event::HookRequest,
    wire::rpc::{CallError, Client, Code, Status},
    wire::version::{Style, StyleCell, Version},
};

/// Transport of a plugin.
pub(crate) enum Peer {
    /// Behind a socket. Both service names share all messages, so a version is a name.
    Remote { client: Client, version: Version },
    /// In this process; takes and gives the same bytes.
    InProcess(Arc<PluginService>),
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// Until we give up.
    pub(crate) ours: Duration,
    /// What the plugin is told.
    pub(crate) told: Duration,
}

impl Limit {
    pub(crate) fn of(limit: Duration) -> Self {
        Self {
            ours: limit,
            told: limit,
        }
    }
}

/// What a delivery came to, and whether it went as `StateChange`.
pub(crate) struct Delivered<T> {
    pub(crate) answer: Result<T, CallError>,
    pub(crate) as_state_change: bool,
}

impl Peer {
    /// Calls a method by name.
    pub(crate) async fn call(
        &self,
        method: &str,
        payload: Vec<u8>,
        limit: Limit,
    ) -> Result<Vec<u8>, CallError> {
        match self {
            Self::Remote { client, version } => {
                let service = version.plugin_service();
                client
                    .call(service, method, payload, limit.ours, limit.told)
                    .await
            }
            Self::InProcess(plugin) => {
                let answer = tokio::time::timeout(limit.ours, plugin.answer(method, payload)).await;
                match answer {
                    Ok(answer) => answer.map_err(CallError::Status),
                    Err(_) => Err(CallError::TimedOut(limit.ours)),
                }
            }
        }
    }

    /// Calls a method with messages for bytes.
    pub(crate) async fn ask<Q: Message, A: Message + Default>(
        &self,
        method: &str,
        request: &Q,
        limit: Limit,
    ) -> Result<A, CallError> {
        let reply = self.call(method, request.encode_to_vec(), limit).await?;
        A::decode(reply.as_slice()).map_err(|e| CallError::BadReply(e.to_string()))
    }

    /// Delivers an event: by its own call, or as `StateChange` if that is all the plugin takes.
    /// Both attempts together have `limit` (NRI-333).
    pub(crate) async fn deliver<R: HookRequest>(
        &self,
        style: &StyleCell,
        request: &R,
        limit: Limit,
    ) -> Delivered<R::Reply> {
        let begun = Instant::now();
        let old =
            style.get() == Style::StateChange && crate::wire::event::has_state_change(R::EVENT);
        if !old {
            let answer = self.ask(method(R::EVENT), request, limit).await;
            if !style.learn(R::EVENT, &answer) {
                return Delivered {
                    answer,
                    as_state_change: false,
                };
            }
        }
        if violate::is("state-change-not-sent") {
            return Delivered {
                answer: Ok(R::Reply::default()),
                as_state_change: true,
            };
        }
        let limit = Limit {
            ours: limit.ours.saturating_sub(begun.elapsed()),
            told: limit.told.saturating_sub(begun.elapsed()),
        };
        let change = StateChangeEvent {
            event: R::EVENT as i32,
            pod: request.pod().cloned(),
            container: request.container().cloned(),
        };
        let reply = self
            .call("StateChange", change.encode_to_vec(), limit)
            .await;
        Delivered {
            answer: reply.map(|_| R::Reply::default()),
            as_state_change: true,
        }
    }
}

/// True if a plugin that never asked for this event by name does not know it (NRI-331): it counts as
/// not subscribed from then on.
pub(crate) fn is_unknown_to_plugin(event: Event, error: &CallError) -> bool {
    let may = matches!(
        event,
        Event::UpdatePodSandbox | Event::ValidateContainerAdjustment
    );
    may && matches!(error, CallError::Status(s) if Status::is(s, Code::Unimplemented))
}
