//! The cut of a plugin that connects, and what it waits for before.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::timeout;

use super::{Joining, Lane, Roster, RosterState, Slot, Waiting};
use crate::{mask::EventMask, plugin::Session, source::Snapshot};

/// A plugin that waits for its cut.
pub(crate) struct WaitsForCut {
    roster: Arc<Roster>,
    number: u64,
    session: Arc<Session>,
}

impl WaitsForCut {
    /// A plugin is about to be cut in: from now on operations that hold the turn, and have an event for it or for the one
    /// that it replaces, wait for that.
    pub(crate) fn begin(
        roster: &Arc<Roster>,
        session: &Arc<Session>,
        replaced: Option<&Session>,
    ) -> Self {
        let mut state = roster.state.lock();
        state.last_seq += 1;
        let number = state.last_seq;
        let waiting = Waiting {
            id: session.id.clone(),
            events: session.events() | replaced.map_or(EventMask::NONE, Session::events),
        };
        state.waiting.insert(number, waiting);
        Self {
            roster: roster.clone(),
            number,
            session: session.clone(),
        }
    }

    /// Waits until a cut on this slot, or on one of its own, waits for nothing.
    ///
    /// The turn comes first and without the lane, which the operation that holds the turn may need; it cannot be taken again
    /// by then. So do dispatches behind which enough have joined. With the lane held, no dispatch begins to ask the older
    /// instance, so those that have are ever fewer.
    ///
    /// The lane is given up after `limit`, for those who wait for it, and others wait for them.
    pub(crate) async fn ready(&self, slot: Option<&Arc<Slot>>, limit: Duration) -> Option<Lane> {
        let Self {
            roster, session, ..
        } = self;
        let mut alone = None;
        let lane = loop {
            roster.once(|state| self.may_have_lane(state)).await;
            let Some(slot) = slot else {
                break None;
            };
            let lane = slot.take_place().wait().await;
            if !roster.state.lock().has_asked(&session.id) {
                return Some(lane);
            }
            // One at a time: else two would wait for dispatches that wait for the lane of the other.
            alone = alone.or_else(|| roster.replacing.try_lock().ok());
            if alone.is_some() {
                break Some(lane);
            }
            drop(lane);
            // Kept: two that only passed it on to each other would do so without end.
            alone = Some(roster.replacing.lock().await);
        };
        // Or until somebody else may need the lane: a turn that did not wait for the plugin any more, for one.
        let finished = roster.once(|state| {
            let waits = state.has_asked(&session.id) && self.may_have_lane(state).is_some();
            (!waits).then_some(())
        });
        // The caller goes on at the deadline.
        let _ = timeout(limit, finished).await;
        lane
    }

    /// Nobody that the plugin waits for may still need the lane.
    fn may_have_lane(&self, state: &RosterState) -> Option<()> {
        let waiting = state.waiting.get(&self.number)?;
        (!waiting.events.meets(state.turn) && !state.is_full()).then_some(())
    }

    /// The cut: enters the plugin and takes the list it is to be told, in one. With the lane of the slot whose instance it
    /// replaces (NRI-1070): events wait from now on, those the old one has begun are finished, and no event goes to both.
    /// Without a lane, or where that instance has gone, the plugin gets a slot of its own. `None`: something began
    /// meanwhile that it must wait for.
    pub(crate) fn cut(
        &self,
        slot: Option<Arc<Slot>>,
        lane: Option<Lane>,
    ) -> Option<(Joining, Snapshot)> {
        let Self {
            roster, session, ..
        } = self;
        let state = &mut *roster.state.lock();
        if self.may_have_lane(state).is_none() || state.has_asked(&session.id) {
            return None;
        }
        let snapshot = state.snapshot(&*roster.source);
        session.take_in_all();
        let old = slot.and_then(|slot| slot.active().map(|old| (slot, old)));
        let Some((slot, old)) = old else {
            return Some((roster.enter(state, session), snapshot));
        };
        slot.instance.store(state.next_instance(), Ordering::SeqCst);
        *slot.heir.lock() = Some(session.clone());
        let joining = Joining {
            roster: roster.clone(),
            slot,
            lane,
            session: session.clone(),
            replaces: Some(old),
        };
        Some((joining, snapshot))
    }
}

impl Drop for WaitsForCut {
    fn drop(&mut self) {
        self.roster.state.lock().waiting.remove(&self.number);
        self.roster.finished.notify_waiters();
    }
}
