//! Sends a must-run plugin the events that it missed (`backlog.rs`), between its new events.
//!
//! ```text
//!   it joined, or a late answer came ─► [lane: the oldest event] ─► a pause ─► [lane: the next] …
//!   a new event of the same object   ─► [lane: the events of that object, then the new one]
//! ```
//!
//! One missed event locks the lane for at most one request timeout. All of them lock it for at most
//! a fifth of the time, so that new events of other objects are delivered in between.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use crate::{
    backlog::{About, Kept},
    call::{Held, ask},
    operation::{AnswerContents, Notified},
    plugin::Session,
    roster::Slot,
    rt,
    settle::{Carried, Who, conclude},
    shared::Shared,
    wire::event::HookRequest,
};

/// Pause after an event, as a multiple of its duration; new events use the lane meanwhile.
const PAUSE: u32 = 4;

/// Sends a must-run plugin its backlog in the background, until the plugin is no longer called.
pub(crate) fn send_from_now(shared: &Arc<Shared>, slot: Arc<Slot>, session: Arc<Session>) {
    let shared = shared.clone();
    rt::spawn(async move {
        let here = |slot: &Slot| slot.active().is_some_and(|now| Arc::ptr_eq(&now, &session));
        while here(&slot) {
            if oldest(&shared, &session, None).is_none() || !is_called(&session) {
                session.kept.notified().await;
                continue;
            }
            let mut lane = Held::from(slot.take_place().wait().await);
            if !here(&slot) {
                return;
            }
            let begun = Instant::now();
            send_oldest(&shared, &mut lane, &session, None).await;
            drop(lane);
            sleep(begun.elapsed() * PAUSE).await;
        }
    });
}

/// Sends the plugin of this lane its backlog of an object, before a new event of that object.
pub(crate) async fn send_before<R: HookRequest>(
    shared: &Arc<Shared>,
    lane: &mut Held,
    session: &Arc<Session>,
    request: &R,
) {
    let object = About::of(request);
    while is_called(session) && send_oldest(shared, lane, session, Some(&object)).await {}
}

fn is_called(session: &Session) -> bool {
    session.overdue.since().is_none() && !session.is_closing()
}

fn oldest(shared: &Shared, session: &Arc<Session>, object: Option<&About>) -> Option<Kept> {
    let (oldest, expired) = shared.backlog.oldest(session, object);
    shared.notices.dropped(&session.id, expired);
    oldest
}

/// False: the backlog is empty, or the plugin is no longer called.
async fn send_oldest(
    shared: &Arc<Shared>,
    lane: &mut Held,
    session: &Arc<Session>,
    object: Option<&About>,
) -> bool {
    let kept = oldest(shared, session, object).filter(|_| is_called(session));
    match &kept {
        None => return false,
        Some(Kept::StopPod(request)) => send(shared, lane, session, request).await,
        Some(Kept::RemovePod(request)) => send(shared, lane, session, request).await,
        Some(Kept::StopContainer(request)) => send(shared, lane, session, request).await,
        Some(Kept::RemoveContainer(request)) => send(shared, lane, session, request).await,
    }
    true
}

async fn send<R: HookRequest>(
    shared: &Arc<Shared>,
    lane: &mut Held,
    session: &Arc<Session>,
    request: &R,
) {
    if !session.selects(request) {
        return shared.backlog.answered(&session.id, &About::of(request));
    }
    let begun = Instant::now();
    let called = ask(shared, lane, session, request, None).await;
    let contents = AnswerContents {
        left_out: called.left_out,
        ..AnswerContents::default()
    };
    let who = Who {
        plugin: &session.id,
        session: Some(session),
    };
    let carried = Carried {
        took: begun.elapsed(),
        contents,
    };
    let sent = &mut Notified::default();
    conclude(shared, who, request, called.outcome, carried, true, sent);
}
