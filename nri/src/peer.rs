//! The one generic call: an event to a plugin, whatever its transport, version and style.

use std::{sync::Arc, time::Duration};

use proto_nri::{Empty, Event, ShutdownRequest, StateChangeEvent};
use tokio::time::Instant;

use crate::{
    mask::event_name,
    plugin_side::service::{Call, PluginService},
    violate,
    wire::event::{HookRequest, Wire},
    wire::rpc::{CallError, Client, Code, Status},
    wire::version::{Style, StyleCell, Version},
};

/// Longest wait for the answer to Shutdown (NRI-1050).
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

/// Transport of a plugin.
pub(crate) enum Peer {
    /// Behind a socket. Both service names share all messages, so a version is a name.
    Remote { client: Client, version: Version },
    /// In this process; takes and gives the same bytes.
    InProcess(Arc<PluginService>),
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
        limit: Duration,
    ) -> Result<Vec<u8>, CallError> {
        match self {
            Self::Remote { client, version } => {
                let service = version.plugin_service();
                client.call(service, method, payload, limit).await
            }
            Self::InProcess(plugin) => {
                let call = Call {
                    version: Version::V1Beta1,
                    deadline: Some(Instant::now() + limit),
                };
                let answer = plugin.answer(method, payload, call);
                match tokio::time::timeout(limit, answer).await {
                    Ok(answer) => answer.map_err(CallError::Status),
                    Err(_) => Err(CallError::TimedOut(limit)),
                }
            }
        }
    }

    /// Waits until the plugin has nothing to answer, not even to a caller that has given up.
    pub(crate) async fn settled(&self) {
        match self {
            Self::Remote { client, .. } => client.settled().await,
            // What it did for a caller ends with the caller.
            Self::InProcess(_) => {}
        }
    }

    /// Calls a method with messages for bytes.
    pub(crate) async fn ask<Q: Wire, A: Wire>(
        &self,
        method: &str,
        request: &Q,
        limit: Duration,
    ) -> Result<A, CallError> {
        let reply = self.call(method, request.to_wire(), limit).await?;
        A::from_wire(&reply).map_err(CallError::BadReply)
    }

    /// Delivers an event: by its own call, or as `StateChange` if that is all the plugin takes.
    /// Both attempts together have `limit` (NRI-333).
    pub(crate) async fn deliver<R: HookRequest>(
        &self,
        style: &StyleCell,
        request: &R,
        limit: Duration,
    ) -> Delivered<R::Reply> {
        let begun = Instant::now();
        let old =
            style.get() == Style::StateChange && crate::wire::event::has_state_change(R::EVENT);
        if !old {
            let answer = self.ask(event_name(R::EVENT), request, limit).await;
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
        let limit = limit.saturating_sub(begun.elapsed());
        let change = StateChangeEvent {
            event: R::EVENT as i32,
            pod: request.pod().cloned(),
            container: request.container().cloned(),
        };
        let reply = self.call("StateChange", change.to_wire(), limit).await;
        Delivered {
            answer: reply.map(|_| R::Reply::default()),
            as_state_change: true,
        }
    }

    /// Says goodbye. The answer does not matter; v1alpha1 has no place for the reason.
    pub(crate) async fn shutdown(&self, reason: &str, limit: Duration) {
        if violate::is("closed-without-goodbye") {
            return;
        }
        let limit = limit.min(SHUTDOWN_LIMIT);
        let alpha = matches!(
            self,
            Self::Remote {
                version: Version::V1Alpha1,
                ..
            }
        );
        let reason = match violate::is("shutdown-without-reason") {
            true => String::new(),
            false => reason.to_owned(),
        };
        let _: Result<Empty, _> = if alpha {
            self.ask("Shutdown", &Empty {}, limit).await
        } else {
            self.ask("Shutdown", &ShutdownRequest { reason }, limit)
                .await
        };
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
