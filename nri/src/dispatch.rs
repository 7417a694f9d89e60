//! Ordered dispatch: one event to all plugins, one after the other (NRI-402…415).
//!
//! [`visit`] gets one plugin's outcome, `policy.rs` says what it means, [`settle`] carries that out.
//! Setup events stop at the first refusal; teardown and notifications reach everyone and never fail.
//! No lock is held while a plugin is called but its own lane.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use proto_nri::Event;
use tokio::time::{Instant, timeout_at};

use crate::{
    backlog::Kept,
    call::call,
    mask::event_name,
    observe::{Delivery, PluginEvent},
    operation::{AnswerContents, Operation, Refused, Told},
    owners::PluginId,
    peer,
    plugin::Session,
    policy::{self, Case, Class, CloseReason, Flow, Outcome, Verdict},
    roster::{Dispatch, Lane, Occupant, Slot},
    shared::Shared,
    violate,
    wire::event::{HookRequest, container_id, pod_id},
};

/// Delivers one event to all plugins that are or become subscribed while it is under way.
pub(crate) async fn dispatch<S: Operation>(
    shared: &Arc<Shared>,
    step: &mut S,
) -> Result<Told, Refused> {
    let event = S::Request::EVENT;
    let exempt = shared.is_exempt(step.request());
    let deadline = shared.deadline_of(event);
    let mut told = Told::default();
    if policy::needs_required(event) {
        // Nobody is asked for what cannot come about.
        let slots = shared.roster.slots();
        let there = |id: &PluginId| slots.iter().any(|slot| slot.id == *id);
        absent(shared, step.request(), exempt, there, &mut told)?;
    }
    let (pod, container) = (pod_id(step.request()), container_id(step.request()));
    let mut dispatch = shared.roster.begin_dispatch(event, pod, container);
    let mut vetoed = None;
    while let Some(slot) = dispatch.next() {
        let flow = visit(
            shared,
            (&dispatch, &slot),
            step,
            (exempt, deadline),
            &mut told,
        )
        .await;
        if let Flow::Abort(reason) = flow {
            if violate::is("veto-asks-on") {
                vetoed.get_or_insert(reason);
                continue;
            }
            return Err(told.refused(event, reason));
        }
        if hides_teardown(event, &told) {
            break;
        }
    }
    if let Some(reason) = vetoed {
        return Err(told.refused(event, reason));
    }
    let visited: Vec<_> = told.deliveries.iter().map(|d| d.plugin.clone()).collect();
    let there = |id: &PluginId| visited.contains(id);
    absent(shared, step.request(), exempt, there, &mut told)?;
    Ok(told)
}

/// Broken on purpose: what befell one plugin keeps a teardown from those behind it.
fn hides_teardown(event: Event, told: &Told) -> bool {
    let last = told.deliveries.last().map(|delivery| &delivery.outcome);
    Class::of(event) == Class::Teardown
        && match last {
            Some(Outcome::Refused(_)) if event == Event::StopPodSandbox => {
                violate::is("stop-error-hides")
            }
            Some(Outcome::TimedOut) => violate::is("teardown-stops-at-timeout"),
            _ => false,
        }
}

impl Told {
    pub(crate) fn refused(&mut self, event: Event, reason: String) -> Refused {
        Refused {
            event,
            reason,
            deliveries: std::mem::take(&mut self.deliveries),
        }
    }
}

/// Settles the event for plugins that the configuration names and that are not there.
pub(crate) fn absent<R: HookRequest>(
    shared: &Arc<Shared>,
    request: &R,
    exempt: bool,
    there: impl Fn(&PluginId) -> bool,
    told: &mut Told,
) -> Result<(), Refused> {
    let named = shared.settings.plugins.iter();
    for (id, settings) in named.filter(|(_, s)| s.policy.required || s.policy.must_run) {
        if there(id) || !settings.policy.events.has(R::EVENT) {
            continue;
        }
        let who = (id, None);
        let flow = conclude(shared, who, request, Outcome::Absent, NOTHING, exempt, told);
        if let Flow::Abort(reason) = flow {
            return Err(told.refused(R::EVENT, reason));
        }
    }
    Ok(())
}

fn delivery<R: HookRequest>(
    request: &R,
    plugin: &PluginId,
    outcome: Outcome,
    (took, contents): (Duration, AnswerContents),
) -> Delivery {
    Delivery {
        event: R::EVENT,
        plugin: plugin.clone(),
        pod: pod_id(request).to_owned(),
        container: container_id(request).to_owned(),
        outcome,
        took,
        adjusted: contents.adjusted,
        changed: contents.changed,
        updates: contents.updates,
        evictions: contents.evictions,
        left_out: contents.left_out,
    }
}

/// One plugin's turn.
async fn visit<S: Operation>(
    shared: &Arc<Shared>,
    (dispatch, slot): (&Dispatch, &Arc<Slot>),
    step: &mut S,
    (exempt, deadline): (bool, Option<Instant>),
    told: &mut Told,
) -> Flow {
    let event = S::Request::EVENT;
    if let Some(session) = slot.session()
        && !session.events().has(event)
    {
        dispatch.passed(slot, false);
        let outcome = Outcome::NotSubscribed;
        let skipped = delivery(step.request(), &slot.id, outcome, NOTHING);
        shared.observer.delivered(&skipped);
        told.deliveries.push(skipped);
        return Flow::Proceed;
    }
    if let Occupant::Joining(session) = slot.occupant()
        && needs_no_answer(event)
    {
        send_later(shared, slot, &session, step.request().clone(), told);
        return Flow::Proceed;
    }
    let lane = match until(deadline, slot.take_place().wait()).await {
        Some(lane) => Some(lane),
        // The operation's own time is over: nobody waits longer for a plugin that joins, or is busy with another pod.
        None => {
            let (who, outcome) = ((&slot.id, None), Outcome::Cancelled);
            return conclude(shared, who, step.request(), outcome, NOTHING, true, told);
        }
    };
    let mut lane = Held { lane, busy: None };
    dispatch.passed(slot, true);
    let begun = Instant::now();
    let session = slot.active();
    let settings = shared.settings_of(&slot.id, session.as_deref());
    let mut contents = AnswerContents::default();
    let outcome = match &session {
        None => Outcome::Absent,
        Some(session) if session.overdue.since().is_some() => Outcome::Skipped,
        Some(session) => {
            let limit = shared.timeouts().request_of(&settings.policy);
            let own = begun + limit;
            let until = deadline.map_or(own, |deadline| deadline.min(own));
            lane.busy = Some((session.clone(), until));
            let called = call(shared, session, step.request(), deadline).await;
            lane.busy = None;
            let outcome = match called
                .reply
                .map(|r| step.take(&slot.id, &settings.policy, r))
            {
                None => called.outcome,
                Some(Ok(carried)) => {
                    contents = carried;
                    called.outcome
                }
                Some(Err(cannot_stand)) => cannot_stand,
            };
            contents.left_out = called.left_out;
            outcome
        }
    };
    let who = (&slot.id, session.as_ref());
    let carried = (begun.elapsed(), contents);
    conclude(shared, who, step.request(), outcome, carried, exempt, told)
}

/// A plugin's lane while it is called. The caller gave up half way: the plugin is still busy, and gets
/// the next event when it has answered, or its time for this one is over.
struct Held {
    lane: Option<Lane>,
    busy: Option<(Arc<Session>, Instant)>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((session, until)) = self.busy.take()
            && !violate::is("busy-plugin-gets-another")
            && let Some(lane) = self.lane.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                let _over = timeout_at(until, session.peer.settled()).await;
                drop(lane);
            });
        }
    }
}

async fn until<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// Events that a joining plugin gets when it is ready, without anyone waiting for it.
fn needs_no_answer(event: Event) -> bool {
    match Class::of(event) {
        Class::Notification => true,
        // Its answer carries updates.
        Class::Teardown => event != Event::StopContainer,
        Class::Setup | Class::Validation => false,
    }
}

/// Keeps the event for a joining plugin, in its order.
fn send_later<R: HookRequest>(
    shared: &Arc<Shared>,
    slot: &Arc<Slot>,
    session: &Arc<Session>,
    request: R,
    told: &mut Told,
) {
    let Some(queued) = slot.queue() else {
        let reason = "synchronize-failed: too many events waited for it";
        shared.close(session, reason.to_owned());
        return;
    };
    let waits = delivery(&request, &slot.id, Outcome::Joining, NOTHING);
    shared.observer.delivered(&waits);
    told.deliveries.push(waits);
    let place = slot.take_place();
    let (shared, slot) = (shared.clone(), slot.clone());
    tokio::spawn(async move {
        let _queued = queued;
        let _lane = place.wait().await;
        let begun = Instant::now();
        let session = slot.active();
        let mut contents = AnswerContents::default();
        let outcome = match &session {
            Some(session) => {
                let called = call(&shared, session, &request, None).await;
                contents.left_out = called.left_out;
                called.outcome
            }
            None => Outcome::Absent,
        };
        let who = (&slot.id, session.as_ref());
        let carried = (begun.elapsed(), contents);
        let mut told = Told::default();
        conclude(&shared, who, &request, outcome, carried, true, &mut told);
    });
}

/// What an answer took and carried, where there was none.
const NOTHING: (Duration, AnswerContents) = (
    Duration::ZERO,
    AnswerContents {
        adjusted: false,
        changed: Vec::new(),
        updates: 0,
        evictions: 0,
        left_out: Vec::new(),
    },
);

/// Judges what came of one plugin, and carries that out. `exempt`: required plugins may be missing.
pub(crate) fn conclude<R: HookRequest>(
    shared: &Arc<Shared>,
    (plugin, session): (&PluginId, Option<&Arc<Session>>),
    request: &R,
    outcome: Outcome,
    carried: (Duration, AnswerContents),
    exempt: bool,
    told: &mut Told,
) -> Flow {
    let settings = shared.settings_of(plugin, session.map(|session| &**session));
    let case = Case {
        plugin,
        event: R::EVENT,
        policy: &settings.policy,
        misses: session.map_or(0, |session| session.misses.load(Ordering::SeqCst)),
        exempt,
    };
    let verdict = policy::decide(case, &outcome);
    let delivery = delivery(request, plugin, outcome, carried);
    settle(shared, session, request, delivery, verdict, told)
}

/// Carries a verdict out, and tells whoever observes.
fn settle<R: HookRequest>(
    shared: &Arc<Shared>,
    session: Option<&Arc<Session>>,
    request: &R,
    delivery: Delivery,
    verdict: Verdict,
    told: &mut Told,
) -> Flow {
    if let Some(session) = session {
        session.misses.store(verdict.misses, Ordering::SeqCst);
        if delivery.outcome != Outcome::Skipped {
            session.stats.record(delivery.took, verdict.log.as_deref());
        }
        if let Some(close) = verdict.close {
            let what = verdict.log.clone().unwrap_or_default();
            let limit = shared.timeouts().request_of(&session.settings.policy);
            let (token, within) = match close {
                CloseReason::RequestTimeout => ("request-timeout", format!(" (limit {limit:?})")),
                CloseReason::ConnectionLost => ("connection-lost", String::new()),
                CloseReason::ProtocolError => ("protocol-error", String::new()),
            };
            shared.close(session, format!("{token}: {what}{within}"));
        }
    }
    if let Some(line) = &verdict.log {
        tracing::warn!(pod = delivery.pod, container = delivery.container, "{line}");
    } else {
        let event = event_name(delivery.event);
        let (plugin, outcome, took) = (&delivery.plugin, &delivery.outcome, delivery.took);
        tracing::debug!("{event} at {plugin}: {outcome:?} after {took:?}");
    }
    peer::note(&delivery.plugin, delivery.event, &delivery.left_out);
    if verdict.journal
        && let Some(kept) = Kept::of(request)
    {
        let id = &delivery.plugin;
        for event in shared.backlog.keep(id, kept) {
            shared.tell_of(id, &PluginEvent::Dropped { event });
        }
        if session.is_none() {
            redeliver_behind(shared, id);
        }
    }
    shared.count(event_name(delivery.event), &delivery);
    shared.observer.delivered(&delivery);
    told.deliveries.push(delivery);
    if !violate::is("teardown-failure-hidden") {
        told.failed = told.failed.take().or(verdict.failed);
    }
    verdict.flow
}

/// A must-run plugin that joined behind the back of a Remove event was not visited, and has had
/// what was kept before: it gets this one now, not when it joins again.
fn redeliver_behind(shared: &Arc<Shared>, id: &PluginId) {
    let slots = shared.roster.slots();
    let Some(slot) = slots.iter().find(|slot| slot.id == *id).cloned() else {
        return;
    };
    let shared = shared.clone();
    tokio::spawn(async move {
        let _lane = slot.take_place().wait().await;
        if let Some(session) = slot.active()
            && session.overdue.since().is_none()
            && let Err(reason) = shared.redeliver(&session).await
        {
            shared.close(&session, reason);
        }
    });
}
