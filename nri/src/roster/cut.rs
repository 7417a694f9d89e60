//! The cut of a plugin that connects, and its conditions.

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
    /// Announces a cut: from now on operations that have the turn, and an event for the plugin or
    /// for the one it replaces, wait for it.
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

    /// Waits until a cut on this slot, or on a slot of its own, has nothing to wait for.
    ///
    /// The turn is awaited first and without the lane, which the operation in the turn may need;
    /// the turn cannot be taken again by then. The same applies to dispatches with the maximum of
    /// joins. With the lane locked, no dispatch begins to call the older instance, so the number of
    /// such dispatches falls.
    ///
    /// The lane is released after `limit`, because others wait for its waiters.
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
            // One at a time: two would wait for dispatches that wait for the other's lane.
            alone = alone.or_else(|| roster.replacing.try_lock().ok());
            if alone.is_some() {
                break Some(lane);
            }
            drop(lane);
            // Kept: two instances could pass it to each other without end.
            alone = Some(roster.replacing.lock().await);
        };
        // Or until the lane may be needed, such as by a turn that stopped waiting for the plugin.
        let finished = roster.once(|state| {
            let waits = state.has_asked(&session.id) && self.may_have_lane(state).is_some();
            (!waits).then_some(())
        });
        // The caller continues at the deadline.
        let _ = timeout(limit, finished).await;
        lane
    }

    /// Whether nothing that the plugin waits for may still need the lane.
    fn may_have_lane(&self, state: &RosterState) -> Option<()> {
        let waiting = state.waiting.get(&self.number)?;
        (!waiting.events.meets(state.turn) && !state.is_full()).then_some(())
    }

    /// The cut: enters the plugin and takes its snapshot, atomically. With the lane of the slot
    /// whose instance it replaces (NRI-1070): events wait from now on, those of the old one are
    /// finished, and no event goes to both. Without a lane, or if that instance has ended, the
    /// plugin gets a slot of its own. `None`: an operation began meanwhile that it must wait for.
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
        session.take_in_listed(&snapshot);
        let old = slot.and_then(|slot| slot.active().map(|old| (slot, old)));
        let Some((slot, old)) = old else {
            return Some((roster.enter(state, session), snapshot));
        };
        slot.instance.store(state.next_instance(), Ordering::SeqCst);
        *slot.successor.lock() = Some(session.clone());
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
