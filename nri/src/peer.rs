//! Sends one event to a plugin, over its transport and in its style (`StateChange` or dedicated
//! calls).

use std::{sync::Arc, time::Duration};

use proto_nri::{Empty, Event, StateChangeEvent};
use tokio::time::Instant;

use crate::{
    mask::event_name,
    plugin_id::PluginId,
    plugin_side::service::PluginService,
    policy,
    shorten::{self, LeftOut, shorten},
    wire::event::{HookRequest, Wire},
    wire::rpc::{CallError, Client, Code, Extra, ROOM, Status},
    wire::version::{Style, StyleCell},
};

/// Longest wait for the answer to Shutdown (NRI-1050).
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

/// Transport of a plugin.
pub(crate) enum Peer {
    /// Behind a socket.
    Remote(Client),
    /// In this process, with the same encoded messages.
    InProcess(Arc<PluginService>),
}

/// Result of a delivery, and whether it was sent as `StateChange`.
pub(crate) struct Delivered<T> {
    pub(crate) answer: Result<T, CallError>,
    pub(crate) as_state_change: bool,
    /// Fields left out because the request was too long.
    pub(crate) left_out: Vec<LeftOut>,
}

impl Peer {
    /// Whether the length of its messages is limited.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// Calls a method by name.
    async fn call(
        &self,
        method: &str,
        payload: Vec<u8>,
        limit: Duration,
        extra: Extra,
    ) -> Result<Vec<u8>, CallError> {
        match self {
            Self::Remote(client) => client.call_with(method, payload, limit, extra).await,
            Self::InProcess(plugin) => {
                let deadline = Some(Instant::now() + limit);
                let answer = plugin.answer(method, payload, deadline, Vec::new());
                match tokio::time::timeout(limit, answer).await {
                    Ok(answer) => answer.map_err(CallError::Status),
                    Err(_) => Err(CallError::TimedOut(limit)),
                }
            }
        }
    }

    /// Waits until the plugin has no open call, including calls whose caller has given up.
    pub(crate) async fn settled(&self) {
        match self {
            Self::Remote(client) => client.settled().await,
            // Its calls end with their callers.
            Self::InProcess(_) => {}
        }
    }

    /// Calls a method with typed messages.
    pub(crate) async fn ask<Q: Wire, A: Wire>(
        &self,
        method: &str,
        request: &Q,
        limit: Duration,
    ) -> Result<A, CallError> {
        self.ask_with(method, request, limit, Extra::default())
            .await
    }

    /// As [`Peer::ask`], with metadata that names the fields left out.
    pub(crate) async fn ask_shortened<Q: Wire, A: Wire>(
        &self,
        method: &str,
        request: &Q,
        left_out: &[LeftOut],
        limit: Duration,
    ) -> Result<A, CallError> {
        self.ask_with(method, request, limit, names(left_out)).await
    }

    async fn ask_with<Q: Wire, A: Wire>(
        &self,
        method: &str,
        request: &Q,
        limit: Duration,
        extra: Extra,
    ) -> Result<A, CallError> {
        let reply = self.call(method, request.to_wire(), limit, extra).await?;
        A::from_wire(&reply).map_err(CallError::BadReply)
    }

    /// Delivers an event; `busy`: the plugin's own limit, where the operation has less time. An
    /// event that plugins cannot reject is shortened if it is too long to be sent.
    pub(crate) async fn deliver<R: HookRequest>(
        &self,
        style: &StyleCell,
        request: &R,
        limit: Duration,
        busy: Duration,
    ) -> Delivered<R::Reply> {
        let room = if policy::makes_object(R::EVENT) {
            ROOM
        } else {
            0
        };
        let extra = Extra {
            room,
            busy,
            ..Extra::default()
        };
        let (answer, as_state_change) = self.attempt(style, request, limit, extra).await;
        match &answer {
            Err(CallError::TooLong { len, limit: most }) if policy::is_shortened(R::EVENT) => {
                let excess = len - most + shorten::NAMES;
                // On the heap: few events are too long, and each call would have to move it.
                Box::pin(self.deliver_shortened(style, request, limit, busy, excess)).await
            }
            _ => Delivered {
                answer,
                as_state_change,
                left_out: Vec::new(),
            },
        }
    }

    async fn deliver_shortened<R: HookRequest>(
        &self,
        style: &StyleCell,
        request: &R,
        limit: Duration,
        busy: Duration,
        excess: usize,
    ) -> Delivered<R::Reply> {
        let mut request = request.clone();
        let (pod, container) = request.objects_mut();
        let left_out = shorten(pod, container, excess);
        let extra = Extra {
            busy,
            ..names(&left_out)
        };
        let (answer, as_state_change) = self.attempt(style, &request, limit, extra).await;
        Delivered {
            answer,
            as_state_change,
            left_out,
        }
    }

    /// Delivers an event unchanged: by its own call, or as `StateChange` if the plugin takes only
    /// that; reports which. Both attempts together have the limit (NRI-333).
    async fn attempt<R: HookRequest>(
        &self,
        style: &StyleCell,
        request: &R,
        limit: Duration,
        extra: Extra,
    ) -> (Result<R::Reply, CallError>, bool) {
        let begun = Instant::now();
        let old =
            style.get() == Style::StateChange && crate::wire::event::has_state_change(R::EVENT);
        if !old {
            let asked = self.ask_with(event_name(R::EVENT), request, limit, extra.clone());
            let answer = asked.await;
            if !style.learn(R::EVENT, &answer) {
                return (answer, false);
            }
        }
        let limit = limit.saturating_sub(begun.elapsed());
        let change = StateChangeEvent {
            event: R::EVENT as i32,
            pod: request.pod().cloned(),
            container: request.container().cloned(),
        };
        let reply = self.call("StateChange", change.to_wire(), limit, extra);
        (reply.await.map(|_| R::Reply::default()), true)
    }

    /// Sends Shutdown; the answer does not matter.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        let limit = limit.min(SHUTDOWN_LIMIT);
        let _: Result<Empty, _> = self.ask("Shutdown", &Empty {}, limit).await;
    }
}

/// Logs the fields that were not sent to a plugin.
pub(crate) fn note(plugin: &PluginId, event: Event, left_out: &[LeftOut]) {
    let event = event_name(event);
    for of in left_out {
        tracing::warn!(%plugin, "{event} is too long and was sent without fields of {of}");
    }
}

/// Metadata that names the fields left out of a request.
fn names(left_out: &[LeftOut]) -> Extra {
    let pairs = left_out.iter();
    Extra {
        metadata: pairs
            .map(|of| (shorten::KEY.to_owned(), of.to_string()))
            .collect(),
        ..Extra::default()
    }
}

/// True if the plugin does not know this event and never subscribed to it by name (NRI-331): from
/// then on it counts as not subscribed.
pub(crate) fn is_unknown_to_plugin(event: Event, error: &CallError) -> bool {
    let may = matches!(
        event,
        Event::UpdatePodSandbox | Event::ValidateContainerAdjustment
    );
    may && matches!(error, CallError::Status(s) if Status::is(s, Code::Unimplemented))
}
