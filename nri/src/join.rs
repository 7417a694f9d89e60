//! One plugin's life on the runtime's side.
//!
//! ```text
//!   connected ─► registered ─► configured ─► joining ─► active ─► closing ─► ended
//!       │            │              │            │                   ▲
//!       └────────────┴──────────────┴────────────┴── any failure ────┘
//! ```
//!
//! The task that runs [`join_and_watch`] owns the connection and the process, and is the only one
//! that changes the plugin's state. Others send requests: [`Shared::close`] takes the plugin off
//! the list at once and leaves the rest (Shutdown, closing, killing) to that task. No operation of
//! a pod waits for it.

use std::sync::Arc;

use proto_nri::{ContainerUpdate, SynchronizeRequest, SynchronizeResponse};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    call::failure_of,
    chunks::{self, Chunk},
    closing::{
        CloseReason::{self, SynchronizeFailed},
        Closing,
    },
    establish::{Connected, Origin},
    kept,
    observe::{Delivery, Kind, PluginEvent},
    operation,
    peer::Peer,
    plugin::Session,
    plugin_id::PluginId,
    policy::Outcome,
    roster::{Joining, NotJoined, Slot, cut::WaitsForCut},
    shared::Shared,
    source::{FailedUpdate, NOT_PERMITTED, Requester, Snapshot},
    wire::{
        discover::Found,
        mux::MuxError,
        rpc::{ENVELOPE, MAX_MESSAGE, ROOM},
    },
};

/// The call that updates of a joining plugin are part of.
pub(crate) const SYNCHRONIZE: &str = "Synchronize";

/// Sends a plugin all pods and containers (NRI-320…325). Returns its updates.
pub(crate) async fn synchronize(
    shared: &Shared,
    session: &Session,
    all: Snapshot,
) -> Result<Vec<ContainerUpdate>, Closing> {
    let (per_chunk, total) = shared.timeouts().sync_of(&session.settings.policy);
    let (pods, containers) = (all.pods.len(), all.containers.len());
    let begun = Instant::now();
    let max = match session.peer {
        Peer::Remote(_) => MAX_MESSAGE - ENVELOPE - ROOM,
        Peer::InProcess(_) => usize::MAX,
    };
    let mut updates = Vec::new();
    let mut done = Delivery::of_sync(&session.id);
    let deadline = begun + total;
    for Chunk { message, left_out } in chunks::chunks(all, max) {
        for left_out in &left_out {
            let left_out = left_out.clone();
            shared
                .notices
                .report(&session.name(), &PluginEvent::Shortened { left_out });
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = per_chunk.min(left);
        let asked = Instant::now();
        let reply: Result<SynchronizeResponse, _> = session
            .peer
            .ask_shortened("Synchronize", &message, &left_out, limit)
            .await;
        done.took = asked.elapsed();
        let failed = reply.as_ref().err().cloned();
        done.outcome = failed.map_or(Outcome::Answered, failure_of);
        done.updates = reply.as_ref().map_or(0, |reply| reply.update.len());
        shared.notices.called("Synchronize", &done);
        let reply = reply.map_err(|e| SynchronizeFailed.because(e))?;
        if !takes_parts(&message, &reply) {
            return Err(SynchronizeFailed.because("the plugin cannot take the list in parts"));
        }
        updates = reply.update;
    }
    let took = begun.elapsed();
    let event = PluginEvent::Synchronized {
        pods,
        containers,
        took,
    };
    shared.notices.report(&session.name(), &event);
    Ok(updates)
}

/// Whether the reply to a part of the list is correct (NRI-320).
pub fn takes_parts(part: &SynchronizeRequest, reply: &SynchronizeResponse) -> bool {
    !part.more || (reply.more && reply.update.is_empty())
}

/// Takes a configured plugin to its first event, unless another thing ends it first.
async fn join(shared: &Arc<Shared>, connected: &Connected) -> Result<(), Closing> {
    let session = &connected.session;
    let alone;
    let entered = async {
        // Two instances that come at once are one after the other.
        let alone = shared.seats.alone(&session.id).await;
        Ok((alone, enter(shared, session).await?))
    };
    let (joining, updates);
    (alone, (joining, updates)) = tokio::select! {
        biased;
        why = connected.mux.closed() => Err(SynchronizeFailed.because(why)),
        () = shared.stopped() => Err(CloseReason::RuntimeStopping.because("while it joined")),
        reason = session.closing() => Err(reason),
        entered = entered => entered,
    }?;
    connected.open();
    apply_own(shared, session, updates).await;
    let activated = activate(shared, joining).map_err(Closing::from);
    drop(alone);
    activated
}

/// The cut, and Synchronize. Returns the plugin's updates.
async fn enter(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
) -> Result<(Joining, Vec<ContainerUpdate>), Closing> {
    let failed = shared.failed_joins.of(&session.id);
    sleep(failed.pause()).await;
    if failed.is_too_often() && !session.settings.policy.required {
        session.is_not_waited_for();
    }
    let (joining, snapshot) = cut_in(shared, session).await;
    let attempt = shared.failed_joins.attempt(&session.id);
    let updates = synchronize(shared, session, snapshot).await?;
    attempt.succeeded();
    Ok((joining, updates))
}

/// The cut; on the slot of an older instance if one exists.
async fn cut_in(shared: &Arc<Shared>, session: &Arc<Session>) -> (Joining, Snapshot) {
    let old = slot_to_replace(shared, session).and_then(|slot| slot.active());
    let waits = WaitsForCut::begin(&shared.roster, session, old.as_deref());
    let limit = shared.timeouts().sync;
    loop {
        let slot = slot_to_replace(shared, session);
        let lane = waits.ready(slot.as_ref(), limit).await;
        if let Some(joined) = waits.cut(slot, lane) {
            return joined;
        }
    }
}

/// The slot of the instance that this one replaces.
fn slot_to_replace(shared: &Shared, session: &Session) -> Option<Arc<Slot>> {
    let replaces = shared.settings.replace_same_name;
    let same = |slot: &Arc<Slot>| {
        slot.id == session.id && slot.active().is_some_and(|old| old.kind != Kind::InProcess)
    };
    let slots = shared.roster.slots();
    slots.into_iter().find(|slot| replaces && same(slot))
}

/// The updates of Synchronize that the plugin may make. The others are reported.
pub(crate) fn granted(
    shared: &Shared,
    session: &Session,
    updates: Vec<ContainerUpdate>,
) -> Vec<ContainerUpdate> {
    let policy = &session.settings.policy;
    let (granted, denied) = operation::permitted_updates(&session.id, policy, updates);
    let denied = denied.into_iter();
    let denied = denied.map(|update| FailedUpdate::new(update, NOT_PERMITTED));
    let by = Requester::one(SYNCHRONIZE, &session.id);
    shared.notices.rejected(&by, &denied.collect::<Vec<_>>());
    granted
}

/// Applies what a plugin asked for when it was synchronised (NRI-327).
async fn apply_own(shared: &Shared, session: &Session, updates: Vec<ContainerUpdate>) {
    let updates = granted(shared, session, updates);
    let by = Requester::one(SYNCHRONIZE, &session.id);
    apply(shared, &by, updates).await;
}

pub(crate) async fn apply(shared: &Shared, by: &Requester, updates: Vec<ContainerUpdate>) {
    // A source that waits for an operation that waits for the plugin must not hang both.
    let limit = shared.timeouts().sync;
    let deadline = Instant::now() + limit;
    // One by one, so that each update after a slow one is reported.
    for update in updates {
        let late = FailedUpdate::new(update.clone(), format!("not applied within {limit:?}"));
        if Instant::now() >= deadline {
            shared.notices.rejected(by, &[late]);
            continue;
        }
        match timeout_at(deadline, shared.source.update(by, vec![update])).await {
            Ok(failed) => failed
                .iter()
                .for_each(|failed| shared.notices.update_failed(by, failed)),
            // The source has it, and may still apply it.
            Err(_) => shared.notices.update_failed(by, &late),
        }
    }
}

/// The plugin's events begin; the instance it replaces gets no more. That one is not closed: it
/// would reconnect at once as the newer of the two.
pub(crate) fn activate(shared: &Arc<Shared>, joining: Joining) -> Result<(), NotJoined> {
    let (slot, session) = (joining.slot.clone(), joining.session.clone());
    let replaced = joining.complete()?;
    shared.failed_joins.forget(&session.id);
    shared.notices.count_changed();
    if session.settings.policy.must_run {
        kept::send_from_now(shared, slot, session);
    }
    if let Some(old) = replaced {
        shared.shadow(old);
    }
    Ok(())
}

/// After the called plugin ends, the newest of those in its shadow is synchronised and called
/// again.
async fn promote(shared: &Arc<Shared>, id: &PluginId) {
    if !shared.seats.has_shadow(id) {
        return;
    }
    let _alone = shared.seats.alone(id).await;
    let taken = shared.roster.slots().iter().any(|slot| slot.id == *id);
    if taken || *shared.stopping.borrow() {
        return;
    }
    let Some(session) = shared.seats.take_newest_shadow(id) else {
        return;
    };
    if let Err(reason) = join_again(shared, &session).await {
        shared.close(&session, reason);
    }
    if session.is_closing() {
        shared.roster.leave(&session);
    }
}

async fn join_again(shared: &Arc<Shared>, session: &Arc<Session>) -> Result<(), Closing> {
    let (joining, updates) = enter(shared, session).await?;
    session.set_shadowed(false);
    apply_own(shared, session, updates).await;
    Ok(activate(shared, joining)?)
}

/// A launched plugin that has ended, and the file it was launched from.
pub(crate) type Ended = Option<(Arc<Session>, Found)>;

/// Serves a configured plugin until it ends.
pub(crate) async fn join_and_watch(shared: Arc<Shared>, connected: Connected) -> Ended {
    if let Err(reason) = join(&shared, &connected).await {
        shared.reject(&connected.session, reason);
    }
    watch(shared, connected).await
}

/// Waits for the end of an active plugin, and ends it.
pub(crate) async fn watch(shared: Arc<Shared>, connected: Connected) -> Ended {
    let Connected {
        session,
        mux,
        serving,
        permit,
        origin,
        ..
    } = connected;
    tokio::select! {
        biased;
        _ = session.closing() => {
            let limit = shared.timeouts().request_of(&session.settings.policy);
            session.peer.shutdown(limit).await;
        }
        why = mux.closed() => shared.close(&session, CloseReason::ConnectionLost.because(why)),
    }
    mux.close(MuxError::Closed);
    let found = match origin {
        Origin::External(_) => None,
        Origin::Launched { found, child } => {
            if session.was_lost()
                && let Some(how) = child.ended().await
            {
                tracing::warn!(plugin = %session.id, "lost a launched plugin: {how}");
                shared.removed.add_end(&session.id, &how);
            }
            child.stop().await;
            Some(found)
        }
    };
    // Waiters for its place, and for updates of its calls, do not wait for the next instance.
    drop((serving, permit));
    session.has_ended();
    promote(&shared, &session.id).await;
    found.map(|found| (session, found))
}
