//! Ordered dispatch: one event to all plugins, one after the other (NRI-402…415).
//!
//! [`visit`] gets one plugin's outcome, `policy.rs` decides its consequences, `settle.rs` applies
//! them. Setup events stop at the first rejection; teardown and notifications reach every plugin
//! and never fail. During a plugin call only its own lane is locked.

use std::{collections::BTreeSet, sync::Arc};

use proto_nri::Event;
use tokio::time::{Instant, timeout_at};

use crate::{
    call::{Held, ask},
    closing::CloseReason,
    kept,
    operation::{AnswerContents, Notified, Operation, Refused},
    plugin::Session,
    plugin_id::PluginId,
    policy::{self, Class, Flow, Outcome},
    roster::{Dispatch, NotJoined, Slot},
    rt,
    settle::{Carried, Who, conclude, delivery},
    shared::Shared,
    wire::event::{HookRequest, container_id, pod_id},
};

/// Delivers one event to all plugins that are, or become, subscribed during the dispatch.
pub(crate) async fn dispatch<S: Operation>(
    shared: &Arc<Shared>,
    step: &mut S,
) -> Result<Notified, Refused> {
    let event = S::Request::EVENT;
    let exempt = shared.settings.is_exempt(step.request());
    let deadline = shared.timeouts().deadline_of(event);
    let mut sent = Notified::default();
    if policy::needs_required(event) {
        // No plugin is called for an operation that is bound to fail.
        wait_for_required(shared, event, deadline).await;
        let slots = shared.roster.slots();
        let there = |id: &PluginId| slots.iter().any(|slot| slot.id == *id);
        absent(shared, step.request(), exempt, there, &mut sent)?;
    }
    let (pod, container) = (pod_id(step.request()), container_id(step.request()));
    let mut dispatch = shared.roster.begin_dispatch(event, pod, container);
    while let Some(slot) = dispatch.next() {
        let flow = visit(shared, &dispatch, &slot, step, exempt, deadline, &mut sent).await;
        if let Flow::Abort(reason) = flow {
            return Err(sent.refused(event, reason));
        }
    }
    let visited: Vec<_> = sent.deliveries.iter().map(|d| d.plugin.clone()).collect();
    let there = |id: &PluginId| visited.contains(id);
    absent(shared, step.request(), exempt, there, &mut sent)?;
    Ok(sent)
}

/// Waits for a required plugin that has connected and waits for its cut. Not in the turn, because
/// there the plugin waits for the turn.
async fn wait_for_required(shared: &Shared, event: Event, deadline: Option<Instant>) {
    let named = shared.settings.plugins.iter();
    let required = named.filter(|(_, settings)| settings.policy.required);
    let required: BTreeSet<_> = required.map(|(id, _)| id).collect();
    if required.is_empty() || holds_turn(event) {
        return;
    }
    let limit = Instant::now() + shared.timeouts().longest_join(&shared.settings);
    let deadline = deadline.map_or(limit, |deadline| deadline.min(limit));
    shared.roster.cut_in(&required, deadline).await;
}

impl Notified {
    pub(crate) fn refused(&mut self, event: Event, reason: String) -> Refused {
        Refused {
            event,
            reason,
            deliveries: std::mem::take(&mut self.deliveries),
        }
    }
}

/// Settles the event for plugins that the configuration names and that are absent.
pub(crate) fn absent<R: HookRequest>(
    shared: &Arc<Shared>,
    request: &R,
    exempt: bool,
    there: impl Fn(&PluginId) -> bool,
    sent: &mut Notified,
) -> Result<(), Refused> {
    let named = shared.settings.plugins.iter();
    for (id, settings) in named.filter(|(_, s)| s.policy.required || s.policy.must_run) {
        if there(id) || !settings.policy.events.has(R::EVENT) {
            continue;
        }
        let (who, carried) = (Who::absent(id), Carried::default());
        let flow = conclude(shared, who, request, Outcome::Absent, carried, exempt, sent);
        if let Flow::Abort(reason) = flow {
            return Err(sent.refused(R::EVENT, reason));
        }
    }
    Ok(())
}

/// Delivers the event to one plugin.
async fn visit<S: Operation>(
    shared: &Arc<Shared>,
    dispatch: &Dispatch,
    slot: &Arc<Slot>,
    step: &mut S,
    exempt: bool,
    deadline: Option<Instant>,
    sent: &mut Notified,
) -> Flow {
    let event = S::Request::EVENT;
    if slot.session().is_some() && !slot.events().has(event) {
        return not_subscribed(shared, slot, step.request(), sent);
    }
    if let Some(session) = slot.joining() {
        if needs_no_answer(event) {
            dispatch.leaves(slot);
            send_later(shared, slot, &session, step.request().clone(), sent);
            return Flow::Proceed;
        }
        // The caller waited for it before it took the turn.
        if (holds_turn(event) || !session.is_waited_for()) && pass_by(shared, slot, &session) {
            let (who, carried) = (Who::absent(&slot.id), Carried::default());
            let outcome = Outcome::Joining;
            return conclude(shared, who, step.request(), outcome, carried, exempt, sent);
        }
    }
    let Some(lane) = until(deadline, slot.take_place().wait()).await else {
        // The operation's own timeout has expired: it no longer waits for a plugin that joins or is
        // busy.
        let (who, carried) = (Who::absent(&slot.id), Carried::default());
        let outcome = Outcome::Cancelled;
        return conclude(shared, who, step.request(), outcome, carried, true, sent);
    };
    let mut lane = Held::from(lane);
    let mut session = dispatch.asks(slot, event);
    if let Some(session) = &session
        && (!session.events().has(event) || is_undone_at(session, step.request()))
    {
        return not_subscribed(shared, slot, step.request(), sent);
    }
    if let Some(must_run) = session.as_ref().filter(|s| s.settings.policy.must_run) {
        Box::pin(kept::send_before(
            shared,
            &mut lane,
            must_run,
            step.request(),
        ))
        .await;
        session = slot.active();
    }
    let begun = Instant::now();
    let mut contents = AnswerContents::default();
    let outcome = match &session {
        None => {
            if Class::of(event) == Class::Teardown
                && shared.settings.plugin(&slot.id).policy.must_run
            {
                // The event is kept.
                dispatch.leaves(slot);
            }
            Outcome::Absent
        }
        Some(session) if session.overdue.since().is_some() => Outcome::Skipped,
        Some(session) => {
            let called = ask(shared, &mut lane, session, step.request(), deadline).await;
            let policy = &session.settings.policy;
            let outcome = match called.reply.map(|r| step.take(&slot.id, policy, r)) {
                None => called.outcome,
                Some(Ok(carried)) => {
                    contents = carried;
                    if contents.adjusted && shared.notices.is_observed {
                        contents.adjustment = step.adjustment();
                    }
                    called.outcome
                }
                Some(Err(cannot_stand)) => cannot_stand,
            };
            contents.left_out = called.left_out;
            outcome
        }
    };
    let who = Who {
        plugin: &slot.id,
        session: session.as_ref(),
    };
    let carried = Carried {
        took: begun.elapsed(),
        contents,
    };
    conclude(shared, who, step.request(), outcome, carried, exempt, sent)
}

/// Whether the event concerns a container whose creation the plugin undoes. While its answer is
/// overdue it misses such an event like any other; only the end is not kept for it.
fn is_undone_at<R: HookRequest>(session: &Session, request: &R) -> bool {
    let is_missed = session.overdue.since().is_some() && Class::of(R::EVENT) != Class::Teardown;
    !is_missed && session.is_left_out(request)
}

/// The event does not wait for the plugin that joins here, which then cannot join. False: an older
/// instance is asked, and the newer one ends.
pub(crate) fn pass_by(shared: &Shared, slot: &Slot, joining: &Arc<Session>) -> bool {
    joining.pass_by();
    let Some(active) = slot.active() else {
        return true;
    };
    if !Arc::ptr_eq(&active, joining) {
        shared.close(joining, NotJoined::PassedBy.into());
    }
    false
}

fn not_subscribed<R: HookRequest>(
    shared: &Shared,
    slot: &Slot,
    request: &R,
    sent: &mut Notified,
) -> Flow {
    if R::EVENT == Event::RemoveContainer
        && let Some(session) = slot.session()
    {
        session.take_in(request);
    }
    let skipped = delivery(
        request,
        &slot.id,
        Outcome::NotSubscribed,
        Carried::default(),
    );
    shared.notices.delivered(&skipped);
    sent.deliveries.push(skipped);
    Flow::Proceed
}

/// The future's result, if it completes by the deadline.
pub(crate) async fn until<T>(
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.ok(),
        None => Some(future.await),
    }
}

/// Events whose caller has the NRI turn.
fn holds_turn(event: Event) -> bool {
    matches!(
        event,
        Event::CreateContainer | Event::UpdateContainer | Event::StopContainer
    )
}

/// Events that a joining plugin gets once it is synchronised; the operation does not wait.
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
    sent: &mut Notified,
) {
    let Some(queued) = slot.queue() else {
        let reason = CloseReason::SynchronizeFailed.because("too many events waited for it");
        shared.close(session, reason);
        return;
    };
    let waits = delivery(&request, &slot.id, Outcome::Joining, Carried::default());
    shared.notices.delivered(&waits);
    sent.deliveries.push(waits);
    let place = slot.take_place();
    let (shared, slot) = (shared.clone(), slot.clone());
    rt::spawn(async move {
        let _queued = queued;
        let sent = &mut Notified::default();
        let mut lane = Held::from(place.wait().await);
        let Some(session) = slot.active() else {
            let (who, carried) = (Who::absent(&slot.id), Carried::default());
            conclude(&shared, who, &request, Outcome::Absent, carried, true, sent);
            return;
        };
        if !session.selects(&request) {
            not_subscribed(&shared, &slot, &request, sent);
            return;
        }
        if session.settings.policy.must_run {
            kept::send_before(&shared, &mut lane, &session, &request).await;
        }
        let begun = Instant::now();
        let (outcome, left_out) = match session.overdue.since() {
            Some(_) => (Outcome::Skipped, Vec::new()),
            None => {
                let called = ask(&shared, &mut lane, &session, &request, None).await;
                (called.outcome, called.left_out)
            }
        };
        let contents = AnswerContents {
            left_out,
            ..AnswerContents::default()
        };
        let who = Who {
            plugin: &slot.id,
            session: Some(&session),
        };
        let carried = Carried {
            took: begun.elapsed(),
            contents,
        };
        conclude(&shared, who, &request, outcome, carried, true, sent);
    });
}
