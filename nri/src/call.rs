//! Delivers one event to one plugin within its time limit, and handles late and missing answers.

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
    task::{AbortHandle, JoinHandle},
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

/// Limit of the wait for a late answer with `on_timeout = "skip"`.
const LATE_WINDOW: Duration = Duration::from_secs(60);

/// A plugin's lane during a call. If the caller gives up early or the operation's own time ends,
/// the plugin is still busy: it gets its next event after its answer or its own time limit.
pub(crate) struct Held {
    lane: Option<Lane>,
    busy: Option<Busy>,
}

struct Busy {
    shared: Arc<Shared>,
    session: Arc<Session>,
    event: Event,
    until: Instant,
    late: Option<Undo>,
}

/// Takes the late answer to a creation, and undoes it.
struct Undo {
    task: JoinHandle<()>,
    /// The answer has arrived.
    answered: Arc<AtomicBool>,
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
    /// Handles a late answer, even without a waiting caller.
    async fn settle(self, lane: Lane) {
        let Self {
            shared,
            session,
            event,
            until,
            late,
        } = self;
        let answered = late.as_ref().map(|undo| undo.answered.clone());
        let is_undone = answered.is_some();
        let settled = async {
            match late {
                Some(undo) => drop(undo.task.await),
                None => session.peer.settled().await,
            }
        };
        tokio::pin!(settled);
        tokio::select! {
            biased;
            () = sleep_until(until) => {}
            () = &mut settled => return,
        }
        // An answer is in time even if its undo takes longer.
        if !answered.is_some_and(|answered| answered.load(Ordering::SeqCst)) {
            let case = Case {
                plugin: &session.id,
                event,
                policy: &session.settings.policy,
                misses: session.misses.load(Ordering::SeqCst),
                exempt: true,
            };
            let verdict = policy::decide(case, &Outcome::TimedOut);
            close_if_due(&shared, &session, &verdict);
        }
        if session.is_closing() || session.settings.policy.on_timeout() != OnTimeout::Skip {
            return;
        }
        session.overdue.begin();
        drop(lane);
        if is_undone {
            // Each of its three calls has a limit.
            settled.await;
        } else {
            // The plugin may never answer.
            let _ = timeout(LATE_WINDOW, settled).await;
        }
        end_overdue(&session);
    }
}

/// Calls the plugin of this lane.
pub(crate) async fn ask<R: HookRequest>(
    shared: &Arc<Shared>,
    lane: &mut Held,
    session: &Arc<Session>,
    request: &R,
    deadline: Option<Instant>,
) -> Called<R::Reply> {
    let limit = shared.timeouts().request_of(&session.settings.policy);
    let busy = Busy {
        shared: shared.clone(),
        session: session.clone(),
        event: R::EVENT,
        until: Instant::now() + limit,
        late: None,
    };
    let late = &mut lane.busy.insert(busy).late;
    let called = call(shared, session, request, deadline, late).await;
    if called.outcome != Outcome::Cancelled {
        lane.busy = None;
    }
    called
}

/// Result of a call.
pub(crate) struct Called<A> {
    pub(crate) outcome: Outcome,
    pub(crate) reply: Option<A>,
    /// Fields that were left out because the request was too long.
    pub(crate) left_out: Vec<LeftOut>,
}

/// Calls one plugin. An operation whose `deadline` ends the call is cancelled; that is not the
/// plugin's fault. `late`: the task that undoes a creation whose answer is late.
async fn call<R: HookRequest>(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    request: &R,
    deadline: Option<Instant>,
    late: &mut Option<Undo>,
) -> Called<R::Reply> {
    let policy = &session.settings.policy;
    let limit = shared.timeouts().request_of(policy);
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let left = left.filter(|left| *left < limit);
    let time = Time {
        wait: left.unwrap_or(limit),
        limit,
    };
    let is_kept = policy.must_run && Class::of(R::EVENT) == Class::Teardown;
    let takes_late = match policy.on_timeout() {
        OnTimeout::Skip => left.is_none() || is_undone(session, R::EVENT),
        // A late answer acknowledges the event.
        OnTimeout::Keep => left.is_none() && is_kept,
        OnTimeout::Close => false,
    };
    let delivered = if takes_late {
        // On the heap: it is large, and few calls need it.
        Box::pin(call_with_late_window(shared, session, request, time, late)).await
    } else {
        let busy = match policy.on_timeout() {
            OnTimeout::Skip => LATE_WINDOW.max(limit),
            OnTimeout::Close | OnTimeout::Keep => limit,
        };
        deliver(session, request, time.wait, busy).await
    };
    if delivered.as_state_change && delivered.answer.is_ok() && session.note_deprecated(R::EVENT) {
        let event = R::EVENT;
        shared
            .notices
            .report(&session.name(), &PluginEvent::Deprecated { event });
    }
    let (outcome, reply) = match delivered.answer {
        Ok(reply) => (Outcome::Answered, Some(reply)),
        Err(CallError::TimedOut(_)) if left.is_some() => (Outcome::Cancelled, None),
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

/// Time left for the answer, and the plugin's own limit: the operation may have less time.
#[derive(Clone, Copy)]
struct Time {
    wait: Duration,
    limit: Duration,
}

async fn deliver<R: HookRequest>(
    session: &Session,
    request: &R,
    wait: Duration,
    busy: Duration,
) -> Delivered<R::Reply> {
    let delivered = session.peer.deliver(&session.style, request, wait, busy);
    delivered.await
}

/// Whether the plugin undoes this event after a late answer (G-34).
fn is_undone(session: &Session, event: Event) -> bool {
    session.settings.policy.on_timeout() == OnTimeout::Skip
        && policy::late(event, true) == Late::Undo
}

/// The outcome of a failed call.
pub(crate) fn failure_of(error: CallError) -> Outcome {
    match error {
        CallError::Status(status) => Outcome::Refused(status),
        CallError::TimedOut(_) => Outcome::TimedOut,
        CallError::Lost(why) => Outcome::Lost(why),
        CallError::BadReply(why) => Outcome::Garbled(why),
        e @ CallError::TooLong { .. } => Outcome::Unsent(e.to_string()),
    }
}

/// Gives up at the limit, and leaves a task that takes the late answer. A plugin of the policy
/// `Skip` that exceeded its own limit is skipped until then.
async fn call_with_late_window<R: HookRequest>(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    request: &R,
    time: Time,
    late: &mut Option<Undo>,
) -> Delivered<R::Reply> {
    let decided = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicBool::new(false));
    let (tx, mut rx) = oneshot::channel();
    let task = {
        let (session, request, decided) = (session.clone(), request.clone(), decided.clone());
        let (shared, answered) = (shared.clone(), answered.clone());
        async move {
            let window = LATE_WINDOW.max(time.limit);
            let delivered = deliver(&session, &request, window, window).await;
            answered.store(true, Ordering::SeqCst);
            if decided.swap(true, Ordering::SeqCst) {
                take_late_answer(&shared, &session, &request, delivered.answer.err()).await;
            } else {
                let _ = tx.send(delivered);
            }
        }
    };
    let task = rt::spawn(task);
    let mut caller = Caller {
        session,
        request,
        abort: None,
        decided: Some(decided),
    };
    if is_undone(session, R::EVENT) {
        *late = Some(Undo { task, answered });
    } else {
        caller.abort = Some(task.abort_handle());
    }
    let lost = |e: oneshot::error::RecvError| Delivered {
        answer: Err(CallError::Lost(e.to_string())),
        as_state_change: false,
        left_out: Vec::new(),
    };
    if let Ok(delivered) = timeout(time.wait, &mut rx).await {
        caller.decided = None;
        return delivered.unwrap_or_else(lost);
    }
    let is_skipped =
        session.settings.policy.on_timeout() == OnTimeout::Skip && time.wait == time.limit;
    if is_skipped {
        session.overdue.begin();
    }
    if !caller.gives_up() {
        session.overdue.end();
        return rx.await.unwrap_or_else(lost);
    }
    Delivered {
        answer: Err(CallError::TimedOut(time.wait)),
        as_state_change: false,
        left_out: Vec::new(),
    }
}

/// Waits for an answer. Dropping it aborts the task, unless the task undoes a creation.
struct Caller<'a, R: HookRequest> {
    session: &'a Session,
    request: &'a R,
    /// Of a task that undoes nothing.
    abort: Option<AbortHandle>,
    /// Set first by the caller: the answer is late. Set first by the answer: it is in time.
    decided: Option<Arc<AtomicBool>>,
}

impl<R: HookRequest> Caller<'_, R> {
    /// False if the answer has arrived.
    fn gives_up(&mut self) -> bool {
        let Some(decided) = self.decided.take() else {
            return false;
        };
        let is_undone = self.abort.take().is_none();
        if is_undone {
            self.session.leave_out(self.request);
        }
        let is_late = !decided.swap(true, Ordering::SeqCst);
        if !is_late && is_undone {
            self.session.take_in(self.request);
        }
        is_late
    }
}

impl<R: HookRequest> Drop for Caller<'_, R> {
    fn drop(&mut self) {
        if let Some(task) = self.abort.take().filter(|_| self.decided.is_some()) {
            self.decided = None;
            task.abort();
        }
        self.gives_up();
    }
}

/// Takes a late answer, or the fact that none will come.
async fn take_late_answer<R: HookRequest>(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    request: &R,
    error: Option<CallError>,
) {
    match policy::late(R::EVENT, error.is_none()) {
        Late::Undo => undo(shared, session, request).await,
        Late::Drop => session.take_in(request),
    }
    if Class::of(R::EVENT) == Class::Teardown {
        let event = About::of(request);
        // With its lane: by then the caller has kept the event.
        let slot = shared.roster.slot_of(session);
        let _lane = match &slot {
            Some(slot) => Some(slot.take_place().wait().await),
            None => None,
        };
        match error {
            None | Some(CallError::Status(_)) => shared.backlog.answered(&session.id, &event),
            Some(_) => shared.backlog.unanswered(&session.id, &event),
        }
    }
    end_overdue(session);
}

/// The plugin gets events again, and the events kept for it meanwhile.
fn end_overdue(session: &Session) {
    session.overdue.end();
    session.kept.notify_one();
}

/// Undoes a container at a plugin whose adjustments were never applied.
async fn undo<R: HookRequest>(shared: &Shared, session: &Session, request: &R) {
    // The plugin gets no other event meanwhile.
    let limit = LATE_WINDOW.max(shared.timeouts().request_of(&session.settings.policy));
    let (pod, container) = (request.pod().cloned(), request.container().cloned());
    let stop = StopContainerRequest {
        pod: pod.clone(),
        container: container.clone(),
    };
    let remove = RemoveContainerRequest { pod, container };
    if session.events().has(Event::StopContainer) {
        let _ = session.notify_again(&stop, limit).await;
    }
    if session.events().has(Event::RemoveContainer) {
        let _ = session.notify_again(&remove, limit).await;
    }
}
