//! One event to one plugin: in time, late, or not at all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use proto_nri::{Event, RemoveContainerRequest, StopContainerRequest};
use tokio::{
    sync::oneshot,
    task::AbortHandle,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    backlog::About,
    observe::PluginEvent,
    peer::{Delivered, is_unknown_to_plugin},
    plugin::Session,
    policy::{self, Case, Class, Late, OnTimeout, Outcome},
    roster::Lane,
    rt,
    settle::close_if_due,
    shared::Shared,
    shorten::LeftOut,
    wire::event::HookRequest,
    wire::rpc::CallError,
};

/// How long an overdue answer is waited for where `on_timeout = "skip"`.
const LATE_WINDOW: Duration = Duration::from_secs(60);

/// A plugin's lane while it is called. Whoever has it gave up half way, or the operation's own time is over: the plugin is
/// still busy, and gets its next event when it has answered, or its time for this one is over too.
pub(crate) struct Held {
    lane: Option<Lane>,
    busy: Option<Busy>,
}

struct Busy {
    shared: Arc<Shared>,
    session: Arc<Session>,
    event: Event,
    until: Instant,
}

impl From<Lane> for Held {
    fn from(lane: Lane) -> Self {
        Self {
            lane: Some(lane),
            busy: None,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(busy) = self.busy.take()
            && let Some(lane) = self.lane.take()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            rt::spawn(busy.settle(lane));
        }
    }
}

impl Busy {
    /// Late is late, also where nobody waits any more.
    async fn settle(self, lane: Lane) {
        let Self {
            shared,
            session,
            event,
            until,
        } = self;
        tokio::select! {
            biased;
            () = sleep_until(until) => {}
            () = session.peer.settled() => return,
        }
        let case = Case {
            plugin: &session.id,
            event,
            policy: &session.settings.policy,
            misses: session.misses.load(Ordering::SeqCst),
            exempt: true,
        };
        let verdict = policy::decide(case, &Outcome::TimedOut);
        close_if_due(&shared, &session, &verdict);
        if session.is_closing() || session.settings.policy.on_timeout() != OnTimeout::Skip {
            return;
        }
        session.overdue.begin();
        drop(lane);
        // It may never answer.
        let _ = timeout(LATE_WINDOW, session.peer.settled()).await;
        end_overdue(&session);
    }
}

/// Calls the plugin whose lane this is.
pub(crate) async fn ask<R: HookRequest>(
    shared: &Arc<Shared>,
    lane: &mut Held,
    session: &Arc<Session>,
    request: &R,
    deadline: Option<Instant>,
) -> Called<R::Reply> {
    let limit = shared.timeouts().request_of(&session.settings.policy);
    lane.busy = Some(Busy {
        shared: shared.clone(),
        session: session.clone(),
        event: R::EVENT,
        until: Instant::now() + limit,
    });
    let called = call(shared, session, request, deadline).await;
    if called.outcome != Outcome::Cancelled {
        lane.busy = None;
    }
    called
}

/// What came of a call.
pub(crate) struct Called<A> {
    pub(crate) outcome: Outcome,
    pub(crate) reply: Option<A>,
    /// Of the request, which would have been too long.
    pub(crate) left_out: Vec<LeftOut>,
}

/// Calls one plugin, and says what came of it. Where the operation's `deadline` is what ends it, that is
/// not the plugin's fault.
async fn call<R: HookRequest>(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    request: &R,
    deadline: Option<Instant>,
) -> Called<R::Reply> {
    let policy = &session.settings.policy;
    let limit = shared.timeouts().request_of(policy);
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if let Some(left) = left.filter(|left| *left < limit) {
        let busy = match policy.on_timeout() {
            OnTimeout::Skip => LATE_WINDOW.max(limit),
            OnTimeout::Close | OnTimeout::Keep => limit,
        };
        let delivered = session
            .peer
            .deliver(&session.style, request, left, busy)
            .await;
        let (outcome, reply) = match delivered.answer {
            Ok(reply) => (Outcome::Answered, Some(reply)),
            Err(CallError::TimedOut(_)) => (Outcome::Cancelled, None),
            Err(e) => (failure_of(e), None),
        };
        return Called {
            outcome,
            reply,
            left_out: delivered.left_out,
        };
    }
    let is_kept = policy.must_run && Class::of(R::EVENT) == Class::Teardown;
    let delivered = match policy.on_timeout() {
        OnTimeout::Skip => call_with_late_window(session, request, limit, shared).await,
        // A late answer acknowledges.
        OnTimeout::Keep if is_kept => call_with_late_window(session, request, limit, shared).await,
        OnTimeout::Close | OnTimeout::Keep => {
            session
                .peer
                .deliver(&session.style, request, limit, limit)
                .await
        }
    };
    if delivered.as_state_change && delivered.answer.is_ok() && session.note_deprecated(R::EVENT) {
        let event = R::EVENT;
        shared.tell(&session.name(), &PluginEvent::Deprecated { event });
    }
    let (outcome, reply) = match delivered.answer {
        Ok(reply) => (Outcome::Answered, Some(reply)),
        Err(e) if is_unknown_to_plugin(R::EVENT, &e) && session.unsubscribe(R::EVENT) => {
            (Outcome::NotSubscribed, None)
        }
        Err(e) => (failure_of(e), None),
    };
    Called {
        outcome,
        reply,
        left_out: delivered.left_out,
    }
}

/// What a call that failed is to the operation.
pub(crate) fn failure_of(error: CallError) -> Outcome {
    match error {
        CallError::Status(status) => Outcome::Refused(status),
        CallError::TimedOut(_) => Outcome::TimedOut,
        CallError::Lost(why) => Outcome::Lost(why),
        CallError::BadReply(why) => Outcome::Garbled(why),
        e @ CallError::TooLong { .. } => Outcome::Unsent(e.to_string()),
    }
}

/// Gives up after `limit` but goes on listening: while the answer is overdue the plugin is skipped, where its policy is
/// `Skip`.
async fn call_with_late_window<R: HookRequest>(
    session: &Arc<Session>,
    request: &R,
    limit: Duration,
    shared: &Arc<Shared>,
) -> Delivered<R::Reply> {
    // Whoever sets it first decides whether the answer was in time.
    let decided = Arc::new(AtomicBool::new(false));
    let (tx, mut rx) = oneshot::channel();
    let task = {
        let (session, request, decided) = (session.clone(), request.clone(), decided.clone());
        let shared = shared.clone();
        async move {
            let window = LATE_WINDOW.max(limit);
            let delivered = session
                .peer
                .deliver(&session.style, &request, window, window)
                .await;
            if decided.swap(true, Ordering::SeqCst) {
                take_late_answer(&shared, &session, &request, delivered.answer.err()).await;
            } else {
                let _ = tx.send(delivered);
            }
        }
    };
    let mut while_waited_for = Abort(Some(rt::spawn(task).abort_handle()));
    let lost = |e: oneshot::error::RecvError| Delivered {
        answer: Err(CallError::Lost(e.to_string())),
        as_state_change: false,
        left_out: Vec::new(),
    };
    if let Ok(delivered) = tokio::time::timeout(limit, &mut rx).await {
        return delivered.unwrap_or_else(lost);
    }
    // From here on it is not the caller's alone.
    while_waited_for.0 = None;
    let is_skipped = session.settings.policy.on_timeout() == OnTimeout::Skip;
    if is_skipped {
        session.overdue.begin();
    }
    if decided.swap(true, Ordering::SeqCst) {
        session.overdue.end();
        return rx.await.unwrap_or_else(lost);
    }
    Delivered {
        answer: Err(CallError::TimedOut(limit)),
        as_state_change: false,
        left_out: Vec::new(),
    }
}

/// A task that ends with the caller that it works for.
struct Abort(Option<AbortHandle>);

impl Drop for Abort {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

/// The late answer is there, or none will come.
async fn take_late_answer<R: HookRequest>(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    request: &R,
    error: Option<CallError>,
) {
    if policy::late(R::EVENT, error.is_none()) == Late::Undo {
        undo(shared, session, request).await;
    }
    let event = About::of(request);
    // With its lane held: whoever called it has kept the event by then.
    let slot = shared.roster.slot_of(session);
    let lane = match &slot {
        Some(slot) => Some(slot.take_place().wait().await),
        None => None,
    };
    match error {
        None | Some(CallError::Status(_)) => shared.backlog.answered(&session.id, &event),
        Some(_) => shared.backlog.unanswered(&session.id, &event),
    }
    drop(lane);
    end_overdue(session);
}

/// The plugin gets events again, and what was kept for it meanwhile.
fn end_overdue(session: &Session) {
    session.overdue.end();
    session.kept.notify_one();
}

/// The plugin believes in a container whose adjustments were never made: takes it back.
async fn undo<R: HookRequest>(shared: &Shared, session: &Session, request: &R) {
    // It gets nothing else meanwhile.
    let limit = LATE_WINDOW.max(shared.timeouts().request_of(&session.settings.policy));
    let (pod, container) = (request.pod().cloned(), request.container().cloned());
    let stop = StopContainerRequest {
        pod: pod.clone(),
        container: container.clone(),
    };
    let remove = RemoveContainerRequest { pod, container };
    if session.events().has(Event::StopContainer) {
        let _ = session.tell_again(&stop, limit).await;
    }
    if session.events().has(Event::RemoveContainer) {
        let _ = session.tell_again(&remove, limit).await;
    }
}
