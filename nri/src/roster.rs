//! Plugin roster: who is active or joining, and the snapshot that each gets in Synchronize.
//!
//! ```text
//!   connect ─► configured ─► [cut] joining ──Synchronize answered──► active ──► gone
//!                              │      └── failed ──────────────────────────────► gone
//!                              └ under one short mutex: snapshot the runtime's objects, enter the list
//! ```
//!
//! Every dispatch begins, takes its next plugin and finishes under the same mutex. So for each object
//! and each plugin: the object is in the plugin's list, or its Run/Create event goes to the plugin;
//! never both, never neither. For that,
//! - an object is left out of the snapshot until its Run or Create dispatch has finished, and that
//!   dispatch also visits plugins that joined meanwhile, if need be after those of higher index;
//! - an object whose Remove dispatch has begun is left out, and that dispatch visits only plugins
//!   that were in when it began.
//!
//! A plugin's place in the list is a [`Slot`].

mod slot;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use proto_nri::Event;
use tokio::sync::Notify;

use crate::{
    plugin::Session,
    source::{Snapshot, Source},
    violate,
};

pub(crate) use slot::{Lane, Occupant, Slot};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Pod(String),
    Container(String),
}

struct DispatchState {
    makes: Option<Object>,
    /// Sequence numbers of the slots it has gone to.
    visited: Vec<u64>,
    /// Those of them that it is done with: a newer instance on such a slot would not be told.
    passed: Vec<u64>,
    /// Only slots up to this one; for Remove.
    until: u64,
}

#[derive(Default)]
struct RosterState {
    /// By index, then order of joining.
    slots: Vec<Arc<Slot>>,
    last_seq: u64,
    dispatches: BTreeMap<u64, DispatchState>,
    last_dispatch: u64,
    /// What plugins may be told of in a list: its Run or Create hook is done, or it was there when
    /// we started; and its Remove has not begun.
    made: BTreeSet<Object>,
}

/// The list of plugins and what is under way.
pub(crate) struct Roster {
    state: Mutex<RosterState>,
    /// A dispatch ended.
    finished: Notify,
    source: Arc<dyn Source>,
}

impl Roster {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        Self {
            state: Mutex::default(),
            finished: Notify::new(),
            source,
        }
    }

    /// Takes what the runtime has now as made, whoever made it: for the start.
    pub(crate) fn adopt(&self) {
        let mut state = self.state.lock();
        let all = self.source.snapshot();
        let pods = all.pods.into_iter().map(|p| Object::Pod(p.id));
        let containers = all.containers.into_iter().map(|c| Object::Container(c.id));
        state.made.extend(pods.chain(containers));
    }

    /// Runs `change` under the mutex of the cut: what it changes in the runtime's snapshot is seen
    /// by a joining plugin wholly or not at all.
    pub(crate) fn cut<T>(&self, change: impl FnOnce() -> T) -> T {
        let _state = self.state.lock();
        change()
    }

    /// Somebody has a slot.
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

    /// The cut: enters plugins as joining and takes the list they are to be told, in one.
    pub(crate) fn join(self: &Arc<Self>, sessions: &[Arc<Session>]) -> (Vec<Joining>, Snapshot) {
        let mut state = self.state.lock();
        let snapshot = state.snapshot(&*self.source);
        let joining = sessions.iter().map(|session| {
            state.last_seq += 1;
            let slot = Arc::new(Slot::new(session, state.last_seq));
            let lane = slot.lane.clone().try_lock_owned().ok();
            let seq = match violate::is("equal-indices-newest-first") {
                true => 0,
                false => slot.seq,
            };
            let at = state
                .slots
                .partition_point(|s| (s.id.index.as_str(), s.seq) < (slot.id.index.as_str(), seq));
            state.slots.insert(at, slot.clone());
            Joining {
                roster: self.clone(),
                slot,
                lane,
                session: session.clone(),
                replaces: None,
            }
        });
        (joining.collect(), snapshot)
    }

    /// The cut for an instance that replaces another on its slot (NRI-1070): events wait from now
    /// on, those the old one has begun are finished first, and no event goes to both.
    pub(crate) async fn join_as(
        self: &Arc<Self>,
        slot: Arc<Slot>,
        session: Arc<Session>,
    ) -> Option<(Joining, Snapshot)> {
        let lane = slot.take_place().wait().await;
        loop {
            let finished = self.finished.notified();
            let mut finished = std::pin::pin!(finished);
            finished.as_mut().enable();
            {
                let state = self.state.lock();
                let old = slot.active()?;
                let busy = state
                    .dispatches
                    .values()
                    .any(|f| f.passed.contains(&slot.seq));
                if !busy {
                    let snapshot = state.snapshot(&*self.source);
                    *slot.heir.lock() = Some(session.clone());
                    let joining = Joining {
                        roster: self.clone(),
                        slot: slot.clone(),
                        lane: Some(lane),
                        session,
                        replaces: Some(old),
                    };
                    return Some((joining, snapshot));
                }
            }
            finished.await;
        }
    }

    /// Takes a plugin off the list, if it is still the one on the slot.
    pub(crate) fn leave(&self, session: &Arc<Session>) {
        let mut state = self.state.lock();
        state.slots.retain(|slot| {
            let mut occupant = slot.occupant.lock();
            let here =
                matches!(&*occupant, Occupant::Joining(s) | Occupant::Active(s) if Arc::ptr_eq(s, session));
            if !here {
                return true;
            }
            let heir = slot.heir.lock().clone();
            let heir = heir.filter(|heir| !Arc::ptr_eq(heir, session));
            let stays = heir.is_some();
            *occupant = heir.map_or(Occupant::Gone, Occupant::Joining);
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
        let mut until = u64::MAX;
        let mut makes = None;
        match (event, object) {
            (Event::RunPodSandbox | Event::CreateContainer, object) => makes = object,
            (_, Some(object)) => {
                until = state.last_seq;
                state.made.remove(&object);
            }
            _ => {}
        }
        state.last_dispatch += 1;
        let id = state.last_dispatch;
        let (visited, passed) = (Vec::new(), Vec::new());
        state.dispatches.insert(
            id,
            DispatchState {
                makes,
                visited,
                passed,
                until,
            },
        );
        Dispatch {
            roster: self.clone(),
            id,
            cursor: None,
        }
    }
}

impl RosterState {
    /// What the runtime has, without what is being made and what is being removed.
    fn snapshot(&self, source: &dyn Source) -> Snapshot {
        let mut all = source.snapshot();
        if violate::is("join-misses-a-pod") {
            all.pods.pop();
        }
        if violate::is("join-lists-nothing") {
            all.containers.clear();
        }
        let twice = violate::is("join-tells-twice");
        let made = |object: Object| twice || self.made.contains(&object);
        all.pods.retain(|p| made(Object::Pod(p.id.clone())));
        all.containers
            .retain(|c| made(Object::Container(c.id.clone())));
        all
    }
}

/// A plugin between the cut and its first event. Dropped before [`Joining::complete`]: it is off the
/// list again, and what waited for it goes on without it.
pub(crate) struct Joining {
    roster: Arc<Roster>,
    pub(crate) slot: Arc<Slot>,
    lane: Option<Lane>,
    session: Arc<Session>,
    replaces: Option<Arc<Session>>,
}

impl Joining {
    /// The plugin is synchronised: its events begin. Gives the instance it has replaced.
    ///
    /// # Errors
    ///
    /// Its slot was taken off the list in the meantime: it, or the one it was to replace, has gone.
    pub(crate) fn complete(mut self) -> Result<Option<Arc<Session>>, SlotGone> {
        {
            let _state = self.roster.state.lock();
            if matches!(self.slot.occupant(), Occupant::Gone) {
                return Err(SlotGone);
            }
            self.slot.occupy(Occupant::Active(self.session.clone()));
            *self.slot.heir.lock() = None;
        }
        self.lane = None;
        Ok(self.replaces.take())
    }
}

/// A plugin cannot become active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("synchronize-failed: removed from the roster meanwhile")]
pub(crate) struct SlotGone;

impl Drop for Joining {
    fn drop(&mut self) {
        if self.lane.is_some() {
            *self.slot.heir.lock() = None;
            // Off a slot that was its own, or that the one it was to replace has left to it.
            self.roster.leave(&self.session);
        }
    }
}

/// One dispatch on its way from plugin to plugin. Dropped: it has finished.
pub(crate) struct Dispatch {
    roster: Arc<Roster>,
    id: u64,
    /// Index and sequence number of the last plugin in order.
    cursor: Option<(String, u64)>,
}

impl Dispatch {
    /// The next plugin; when there is none left, the dispatch has finished.
    pub(crate) fn next(&mut self) -> Option<Arc<Slot>> {
        let mut state = self.roster.state.lock();
        let RosterState {
            slots,
            dispatches,
            made,
            ..
        } = &mut *state;
        let dispatch = dispatches.get_mut(&self.id)?;
        let fresh = |s: &&Arc<Slot>| s.seq <= dispatch.until && !dispatch.visited.contains(&s.seq);
        let after = |s: &&Arc<Slot>| match &self.cursor {
            Some((index, seq)) => (s.id.index.as_str(), s.seq) > (index.as_str(), *seq),
            None => true,
        };
        // In order; then those that joined behind our back.
        let next = slots.iter().filter(fresh).find(after);
        let next = match violate::is("plugins-in-order-of-joining") {
            true => slots.iter().filter(fresh).min_by_key(|slot| slot.seq),
            false => next.or_else(|| slots.iter().find(fresh)),
        };
        let next = next.cloned();
        match next {
            Some(slot) => {
                dispatch.visited.push(slot.seq);
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

    /// The dispatch is done with a slot whose lane it still holds, or which it has only passed
    /// because nobody there is `subscribed`; that matters for what is being made.
    pub(crate) fn passed(&self, slot: &Slot, subscribed: bool) {
        let mut state = self.roster.state.lock();
        if let Some(dispatch) = state.dispatches.get_mut(&self.id)
            && (subscribed || dispatch.makes.is_some())
        {
            dispatch.passed.push(slot.seq);
        }
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
