//! Plugin roster: the active and joining plugins, and the snapshot that each gets in Synchronize.
//!
//! ```text
//!   connect ─► configured ─► [cut] joining ──Synchronize answered──► active ──► ended
//!                              │      └── failed ──────────────────────────────► ended
//!                              └ under one short mutex: snapshot of the objects, entry in the list
//! ```
//!
//! Every dispatch begins, takes its next plugin and finishes under the same mutex. So for each
//! object and each plugin: the object is in the plugin's list, or its Run/Create event goes to the
//! plugin; never both, never neither. Two rules ensure this:
//! - an object is left out of the snapshot until its Run or Create dispatch has finished, and that
//!   dispatch also visits plugins that joined meanwhile, if need be after those of higher index;
//! - an object whose Remove dispatch has begun is left out, and that dispatch visits only plugins
//!   that were in the roster when it began.
//!
//! Every dispatch ends, because a cut waits for
//! - the dispatches that have called another instance of the same id: no dispatch calls an id
//!   twice;
//! - the dispatches that [`MAX_LATE`] plugins have joined;
//! - the operation that has the NRI turn, if it has an event for the plugin: no join is awaited in
//!   the turn. In return the next such operation waits for the cut, and for Synchronize, before the
//!   turn.
//!
//! A plugin's place in the list is a [`Slot`].

pub(crate) mod cut;
mod slot;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use proto_nri::Event;
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::{Instant, timeout_at},
};

use crate::{
    closing::{CloseReason, Closing},
    mask::EventMask,
    plugin::Session,
    plugin_id::PluginId,
    source::{Snapshot, Source},
};

pub(crate) use slot::{Lane, Occupant, Slot};

/// Plugins that may join during one dispatch; more join after it.
const MAX_LATE: usize = 8;

/// Events of the operation that has the turn for this one.
fn turn_events(event: Event) -> EventMask {
    match event {
        Event::CreateContainer => {
            EventMask::of(event) | EventMask::of(Event::ValidateContainerAdjustment)
        }
        _ => EventMask::of(event),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Pod(String),
    Container(String),
}

struct DispatchState {
    makes: Option<Object>,
    /// The visited slots, and the newest instance of each at that time.
    visited: BTreeMap<u64, u64>,
    /// The called ids: a later instance of one joins after the dispatch.
    asked: BTreeSet<PluginId>,
    /// Only slots up to this one; for Remove.
    until: Option<u64>,
    /// Plugins that joined since it began.
    late: usize,
}

#[derive(Default)]
struct RosterState {
    /// By index, then order of joining.
    slots: Vec<Arc<Slot>>,
    /// Of slots and instances.
    last_seq: u64,
    dispatches: BTreeMap<u64, DispatchState>,
    last_dispatch: u64,
    /// Objects that a list may contain: the Run or Create hook is done, or the object existed at
    /// our start; and its Remove has not begun.
    made: BTreeSet<Object>,
    /// Events of the operation that has the turn.
    turn: EventMask,
    /// Plugins that wait for their cut.
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    id: PluginId,
    /// Of the plugin and of the one that it replaces.
    events: EventMask,
}

/// The list of plugins and the running dispatches.
pub(crate) struct Roster {
    state: Mutex<RosterState>,
    /// A dispatch, a turn, a join or a wait for one has ended.
    finished: Notify,
    /// Locked by the one instance that has the lane of its predecessor, and waits.
    replacing: AsyncMutex<()>,
    source: Arc<dyn Source>,
}

impl Roster {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        Self {
            state: Mutex::default(),
            finished: Notify::new(),
            replacing: AsyncMutex::default(),
            source,
        }
    }

    /// Marks all objects of the runtime as made, for the start.
    pub(crate) fn adopt(&self) {
        let mut state = self.state.lock();
        let all = self.source.snapshot();
        let pods = all.pods.into_iter().map(|p| Object::Pod(p.id));
        let containers = all.containers.into_iter().map(|c| Object::Container(c.id));
        state.made.extend(pods.chain(containers));
    }

    /// Runs `change` under the mutex of the cut: a joining plugin sees all of the change in the
    /// runtime's snapshot, or nothing of it.
    pub(crate) fn cut<T>(&self, change: impl FnOnce() -> T) -> T {
        let _state = self.state.lock();
        change()
    }

    /// Whether a slot is taken.
    pub(crate) fn is_taken(&self) -> bool {
        !self.state.lock().slots.is_empty()
    }

    /// All slots, in order.
    pub(crate) fn slots(&self) -> Vec<Arc<Slot>> {
        self.state.lock().slots.clone()
    }

    /// The slot of an active plugin.
    pub(crate) fn slot_of(&self, session: &Arc<Session>) -> Option<Arc<Slot>> {
        let here = |slot: &&Arc<Slot>| slot.active().is_some_and(|s| Arc::ptr_eq(&s, session));
        self.state.lock().slots.iter().find(here).cloned()
    }

    /// True while the container's CreateContainer is under way.
    pub(crate) fn is_being_created(&self, container: &str) -> bool {
        let state = self.state.lock();
        state
            .dispatches
            .values()
            .any(|f| matches!(&f.makes, Some(Object::Container(id)) if id == container))
    }

    /// The cut at the start: enters plugins as joining and takes their snapshot, atomically.
    pub(crate) fn join(self: &Arc<Self>, sessions: &[Arc<Session>]) -> (Vec<Joining>, Snapshot) {
        let mut state = self.state.lock();
        let snapshot = state.snapshot(&*self.source);
        let joining = sessions
            .iter()
            .map(|session| self.enter(&mut state, session));
        (joining.collect(), snapshot)
    }

    /// Enters a plugin on a slot of its own.
    fn enter(self: &Arc<Self>, state: &mut RosterState, session: &Arc<Session>) -> Joining {
        let slot = Arc::new(Slot::new(session, state.next_instance()));
        let lane = slot.try_lane();
        let at = state
            .slots
            .partition_point(|s| (s.id.index.as_str(), s.seq) < (slot.id.index.as_str(), slot.seq));
        state.slots.insert(at, slot.clone());
        Joining {
            roster: self.clone(),
            slot,
            lane,
            session: session.clone(),
            replaces: None,
        }
    }

    /// Waits until operations that have the turn for this event need not wait for a joining plugin;
    /// at most until `deadline`.
    pub(crate) async fn joined(&self, event: Event, deadline: Instant) {
        let joined = self.once(|state| (!state.is_joining(event)).then_some(()));
        // The caller continues at the deadline.
        let _ = timeout_at(deadline, joined).await;
    }

    /// Waits until no plugin of these ids waits for its cut; at most until `deadline`.
    pub(crate) async fn cut_in(&self, ids: &BTreeSet<&PluginId>, deadline: Instant) {
        let is_among = |waiting: &Waiting| ids.contains(&waiting.id);
        let cut_in = self.once(|state| (!state.waiting.values().any(is_among)).then_some(()));
        // The caller continues at the deadline.
        let _ = timeout_at(deadline, cut_in).await;
    }

    /// Takes the turn for this event: no plugin that gets it is cut in until [`Roster::end_turn`].
    /// False if one has begun to join meanwhile and `late` is unset.
    pub(crate) fn begin_turn(&self, event: Event, late: bool) -> bool {
        let mut state = self.state.lock();
        if !late && state.is_joining(event) {
            return false;
        }
        state.turn = turn_events(event);
        self.finished.notify_waiters();
        true
    }

    pub(crate) fn end_turn(&self) {
        self.state.lock().turn = EventMask::NONE;
        self.finished.notify_waiters();
    }

    /// Waits until `find` returns a value; it runs again whenever a dispatch, turn or join ends.
    async fn once<T>(&self, mut find: impl FnMut(&mut RosterState) -> Option<T>) -> T {
        loop {
            let mut finished = std::pin::pin!(self.finished.notified());
            finished.as_mut().enable();
            if let Some(found) = find(&mut self.state.lock()) {
                return found;
            }
            finished.await;
        }
    }

    /// Takes a plugin off the list, if it still occupies the slot.
    pub(crate) fn leave(&self, session: &Arc<Session>) {
        let mut state = self.state.lock();
        state.slots.retain(|slot| {
            let mut occupant = slot.occupant.lock();
            let here =
                matches!(&*occupant, Occupant::Joining(s) | Occupant::Active(s) if Arc::ptr_eq(s, session));
            if !here {
                return true;
            }
            let successor = slot.successor.lock().clone();
            let successor = successor.filter(|successor| !Arc::ptr_eq(successor, session));
            let stays = successor.is_some();
            *occupant = successor.map_or(Occupant::Removed, Occupant::Joining);
            stays
        });
    }

    /// Begins a dispatch.
    pub(crate) fn begin_dispatch(
        self: &Arc<Self>,
        event: Event,
        pod: &str,
        container: &str,
    ) -> Dispatch {
        let mut state = self.state.lock();
        let object = match event {
            Event::RunPodSandbox | Event::RemovePodSandbox => Some(Object::Pod(pod.to_owned())),
            Event::CreateContainer | Event::RemoveContainer => {
                Some(Object::Container(container.to_owned()))
            }
            _ => None,
        };
        let mut until = None;
        let mut makes = None;
        match (event, object) {
            (Event::RunPodSandbox | Event::CreateContainer, object) => makes = object,
            (_, Some(object)) => {
                until = Some(state.last_seq);
                state.made.remove(&object);
            }
            _ => {}
        }
        state.last_dispatch += 1;
        let id = state.last_dispatch;
        let dispatch = DispatchState {
            makes,
            visited: BTreeMap::new(),
            asked: BTreeSet::new(),
            until,
            late: 0,
        };
        state.dispatches.insert(id, dispatch);
        Dispatch {
            roster: self.clone(),
            id,
            cursor: None,
        }
    }
}

impl RosterState {
    /// The number of an instance that is cut in now: running dispatches visit it too.
    fn next_instance(&mut self) -> u64 {
        for dispatch in self.dispatches.values_mut() {
            dispatch.late += usize::from(dispatch.until.is_none());
        }
        self.last_seq += 1;
        self.last_seq
    }

    /// Whether an operation for this event must wait before the turn: a plugin that gets it is
    /// being synchronised, or is about to be.
    fn is_joining(&self, event: Event) -> bool {
        let events = turn_events(event);
        let is_waited_for = |slot: &Arc<Slot>| {
            slot.joining()
                .is_some_and(|session| session.is_waited_for() && slot.events().meets(events))
        };
        let mut waiting = self.waiting.values();
        waiting.any(|waiting| waiting.events.meets(events)) || self.slots.iter().any(is_waited_for)
    }

    /// Whether a running dispatch would call an instance of this id a second time.
    fn has_asked(&self, id: &PluginId) -> bool {
        let mut dispatches = self.dispatches.values();
        dispatches.any(|d| d.until.is_none() && d.asked.contains(id))
    }

    /// Whether a running dispatch has reached the limit of joins.
    fn is_full(&self) -> bool {
        let mut dispatches = self.dispatches.values();
        dispatches.any(|d| d.late >= MAX_LATE)
    }

    /// The objects of the runtime, without those being made or removed.
    fn snapshot(&self, source: &dyn Source) -> Snapshot {
        let mut all = source.snapshot();
        let made = |object: Object| self.made.contains(&object);
        all.pods.retain(|p| made(Object::Pod(p.id.clone())));
        all.containers
            .retain(|c| made(Object::Container(c.id.clone())));
        all
    }
}

/// A plugin between the cut and its first event. Dropping it before [`Joining::complete`] takes it
/// off the list, and its waiters continue without it.
pub(crate) struct Joining {
    roster: Arc<Roster>,
    pub(crate) slot: Arc<Slot>,
    lane: Option<Lane>,
    pub(crate) session: Arc<Session>,
    replaces: Option<Arc<Session>>,
}

impl Joining {
    /// The plugin is synchronised: its events begin. Returns the instance it has replaced.
    ///
    /// # Errors
    ///
    /// Its slot was taken off the list in the meantime: it, or the instance it was to replace, has
    /// ended. Or an event that needed its answer did not wait for it.
    pub(crate) fn complete(mut self) -> Result<Option<Arc<Session>>, NotJoined> {
        {
            let _state = self.roster.state.lock();
            if matches!(self.slot.occupant(), Occupant::Removed) {
                return Err(NotJoined::Removed);
            }
            if self.session.was_passed_by() {
                return Err(NotJoined::PassedBy);
            }
            self.slot.occupy(Occupant::Active(self.session.clone()));
            *self.slot.successor.lock() = None;
        }
        self.lane = None;
        self.roster.finished.notify_waiters();
        Ok(self.replaces.take())
    }
}

/// A plugin cannot become active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotJoined {
    #[error("removed from the roster meanwhile")]
    Removed,
    #[error("events passed it by meanwhile, which did not wait for it")]
    PassedBy,
}

impl From<NotJoined> for Closing {
    fn from(error: NotJoined) -> Self {
        CloseReason::SynchronizeFailed.because(error)
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if self.lane.is_some() {
            *self.slot.successor.lock() = None;
            // The slot was its own, or was left to it by the instance it was to replace.
            self.roster.leave(&self.session);
            self.roster.finished.notify_waiters();
        }
    }
}

/// A running dispatch. Dropping it finishes it.
pub(crate) struct Dispatch {
    roster: Arc<Roster>,
    id: u64,
    /// Index and sequence number of the last plugin in order.
    cursor: Option<(String, u64)>,
}

impl Dispatch {
    /// The next plugin; after the last one the dispatch has finished.
    pub(crate) fn next(&mut self) -> Option<Arc<Slot>> {
        let mut state = self.roster.state.lock();
        let RosterState {
            slots,
            dispatches,
            made,
            ..
        } = &mut *state;
        let dispatch = dispatches.get_mut(&self.id)?;
        let fresh = |slot: &&Arc<Slot>| match (dispatch.visited.get(&slot.seq), dispatch.until) {
            (None, until) => until.is_none_or(|until| slot.seq <= until),
            // A newer instance, possibly with more events, is cut in on a visited slot.
            (Some(instance), None) => {
                *instance < slot.instance() && !dispatch.asked.contains(&slot.id)
            }
            (Some(_), Some(_)) => false,
        };
        let after = |s: &&Arc<Slot>| match &self.cursor {
            Some((index, seq)) => (s.id.index.as_str(), s.seq) > (index.as_str(), *seq),
            None => true,
        };
        // In order; then those that joined during the dispatch.
        let next = slots.iter().filter(fresh).find(after);
        let next = next.or_else(|| slots.iter().find(fresh)).cloned();
        match next {
            Some(slot) => {
                dispatch.visited.insert(slot.seq, slot.instance());
                let key = (slot.id.index.clone(), slot.seq);
                if self.cursor.as_ref().is_none_or(|cursor| *cursor < key) {
                    self.cursor = Some(key);
                }
                Some(slot)
            }
            None => {
                let dispatch = dispatches.remove(&self.id);
                made.extend(dispatch.and_then(|dispatch| dispatch.makes));
                drop(state);
                self.roster.finished.notify_waiters();
                None
            }
        }
    }

    /// The event reaches the plugin here by another way: a later instance of its id joins after the
    /// dispatch.
    pub(crate) fn leaves(&self, slot: &Slot) {
        let mut state = self.roster.state.lock();
        if let Some(dispatch) = state.dispatches.get_mut(&self.id) {
            dispatch.asked.insert(slot.id.clone());
        }
    }

    /// With this slot's lane: the called instance. If it gets the event, a later instance of its id
    /// joins after the dispatch.
    pub(crate) fn asks(&self, slot: &Slot, event: Event) -> Option<Arc<Session>> {
        let mut state = self.roster.state.lock();
        let session = slot.active()?;
        if let Some(dispatch) = state.dispatches.get_mut(&self.id)
            && session.events().has(event)
        {
            dispatch.asked.insert(slot.id.clone());
        }
        Some(session)
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        let dispatch = self.roster.state.lock().dispatches.remove(&self.id);
        if dispatch.is_some() {
            self.roster.finished.notify_waiters();
        }
    }
}
