//! Applies the consequences of an outcome: for the operation, the plugin, and its backlog.
//!
//! `policy.rs` decides.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    backlog::{About, Kept},
    mask::event_name,
    observe::Delivery,
    operation::{AnswerContents, Notified},
    peer,
    plugin::Session,
    plugin_id::PluginId,
    policy::{self, Case, Class, CloseReason, Flow, Outcome, Verdict},
    shared::Shared,
    wire::event::{HookRequest, container_id, pod_id},
};

/// An answer's duration and contents; the default without an answer.
#[derive(Default)]
pub(crate) struct Carried {
    pub(crate) took: Duration,
    pub(crate) contents: AnswerContents,
}

/// The plugin of an outcome, and its instance, if one is active.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) plugin: &'a PluginId,
    pub(crate) session: Option<&'a Arc<Session>>,
}

impl<'a> Who<'a> {
    pub(crate) fn absent(plugin: &'a PluginId) -> Self {
        Self {
            plugin,
            session: None,
        }
    }
}

pub(crate) fn delivery<R: HookRequest>(
    request: &R,
    plugin: &PluginId,
    outcome: Outcome,
    carried: Carried,
) -> Delivery {
    let Carried { took, contents } = carried;
    Delivery {
        event: R::EVENT,
        plugin: plugin.clone(),
        pod: pod_id(request).to_owned(),
        container: container_id(request).to_owned(),
        outcome,
        took,
        adjusted: contents.adjusted,
        changed: contents.changed,
        adjustment: contents.adjustment,
        updates: contents.updates,
        evictions: contents.evictions,
        left_out: contents.left_out,
    }
}

/// Decides on one plugin's outcome and applies it. `exempt`: required plugins may be missing.
pub(crate) fn conclude<R: HookRequest>(
    shared: &Arc<Shared>,
    who: Who<'_>,
    request: &R,
    outcome: Outcome,
    carried: Carried,
    exempt: bool,
    sent: &mut Notified,
) -> Flow {
    let Who { plugin, session } = who;
    let settings = session.map_or_else(
        || shared.settings.plugin(plugin),
        |session| session.settings.clone(),
    );
    let case = Case {
        plugin,
        event: R::EVENT,
        policy: &settings.policy,
        misses: session.map_or(0, |session| session.misses.load(Ordering::SeqCst)),
        exempt,
    };
    let verdict = policy::decide(case, &outcome);
    let delivery = delivery(request, plugin, outcome, carried);
    settle(shared, session, request, delivery, verdict, sent)
}

/// Applies a verdict, and notifies the observer.
fn settle<R: HookRequest>(
    shared: &Arc<Shared>,
    session: Option<&Arc<Session>>,
    request: &R,
    delivery: Delivery,
    verdict: Verdict,
    sent: &mut Notified,
) -> Flow {
    if let Some(session) = session {
        if delivery.outcome != Outcome::Skipped {
            session.stats.record(delivery.took, verdict.log.as_deref());
        }
        close_if_due(shared, session, &verdict);
    }
    if let Some(line) = &verdict.log {
        tracing::warn!(pod = delivery.pod, container = delivery.container, "{line}");
    } else {
        let event = event_name(delivery.event);
        let (plugin, outcome, took) = (&delivery.plugin, &delivery.outcome, delivery.took);
        tracing::debug!("{event} at {plugin}: {outcome:?} after {took:?}");
    }
    peer::note(&delivery.plugin, delivery.event, &delivery.left_out);
    let who = Who {
        plugin: &delivery.plugin,
        session,
    };
    keep_or_forget(shared, who, request, &delivery.outcome, verdict.journal);
    shared.notices.called(event_name(delivery.event), &delivery);
    shared.notices.delivered(&delivery);
    sent.deliveries.push(delivery);
    sent.failed = sent.failed.take().or(verdict.failed);
    verdict.flow
}

/// Keeps a teardown event for a must-run plugin; or forgets it, if the plugin has answered.
fn keep_or_forget<R: HookRequest>(
    shared: &Arc<Shared>,
    who: Who<'_>,
    request: &R,
    outcome: &Outcome,
    keep: bool,
) {
    if Class::of(R::EVENT) != Class::Teardown {
        return;
    }
    if !keep {
        return shared.backlog.answered(who.plugin, &About::of(request));
    }
    let Some(kept) = Kept::of(request) else {
        return;
    };
    let tried = matches!(
        outcome,
        Outcome::TimedOut | Outcome::Lost(_) | Outcome::Garbled(_) | Outcome::Unsent(_)
    );
    let may_answer =
        |session: &&Arc<Session>| *outcome == Outcome::TimedOut && !session.is_closing();
    let Who { plugin, session } = who;
    let owed_by = session.filter(may_answer);
    let given_up = shared.backlog.keep(plugin, kept, tried, owed_by);
    shared.notices.dropped(plugin, given_up);
    // It joined during a Remove event, which did not reach it: it gets the event now, not at its
    // next join.
    let slots = shared.roster.slots();
    let behind = slots
        .iter()
        .find(|slot| session.is_none() && slot.id == *plugin);
    if let Some(session) = behind.and_then(|slot| slot.active()) {
        session.kept.notify_one();
    }
}

/// Applies the consequences for the plugin itself.
pub(crate) fn close_if_due(shared: &Shared, session: &Arc<Session>, verdict: &Verdict) {
    session.misses.store(verdict.misses, Ordering::SeqCst);
    let Some(close) = verdict.close else {
        return;
    };
    let what = verdict.log.as_deref().unwrap_or_default();
    let limit = shared.timeouts().request_of(&session.settings.policy);
    let details = match close {
        CloseReason::RequestTimeout => format!("{what} (limit {limit:?})"),
        _ => what.to_owned(),
    };
    shared.close(session, close.because(details));
}
