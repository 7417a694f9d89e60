//! A plugin's place in the roster. Only the roster changes its occupant, under its mutex.
//!
//! Each slot has a *lane*, a FIFO lock: a plugin gets one event at a time. A joining plugin locks
//! its own lane until it is synchronised; its events wait there in order.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::{mask::EventMask, plugin::Session, plugin_id::PluginId};

/// Events that may wait for a joining plugin in the background.
const MAX_QUEUED: usize = 1024;

/// Occupant of a slot.
#[derive(Clone)]
pub(crate) enum Occupant {
    /// Not synchronised yet; events wait in the lane.
    Joining(Arc<Session>),
    Active(Arc<Session>),
    Removed,
}

/// A place in the order of plugins. It outlives an instance that is replaced (NRI-1070).
pub(crate) struct Slot {
    pub(crate) id: PluginId,
    /// Order of joining; breaks ties between equal indices (NRI-402).
    pub(crate) seq: u64,
    /// The number of the newest instance that was cut in here; the first has that of the slot.
    pub(super) instance: AtomicU64,
    pub(super) lane: Arc<AsyncMutex<()>>,
    queued: AtomicUsize,
    pub(super) occupant: Mutex<Occupant>,
    /// The joining instance that replaces the present one, and inherits the slot if that one ends.
    pub(super) successor: Mutex<Option<Arc<Session>>>,
}

/// The right to call the plugin on a slot.
pub(crate) type Lane = OwnedMutexGuard<()>;

/// A place in the queue for a lane, kept from the moment it was taken.
pub(crate) struct LanePlace(std::pin::Pin<Box<dyn Future<Output = Lane> + Send>>);

impl LanePlace {
    pub(crate) async fn wait(self) -> Lane {
        self.0.await
    }
}

impl Slot {
    /// The slot of a joining plugin.
    pub(super) fn new(session: &Arc<Session>, seq: u64) -> Self {
        Self {
            id: session.id.clone(),
            seq,
            instance: AtomicU64::new(seq),
            lane: Arc::default(),
            queued: AtomicUsize::new(0),
            occupant: Mutex::new(Occupant::Joining(session.clone())),
            successor: Mutex::default(),
        }
    }

    pub(crate) fn occupant(&self) -> Occupant {
        self.occupant.lock().clone()
    }

    /// The occupant, active or joining.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        match self.occupant() {
            Occupant::Joining(session) | Occupant::Active(session) => Some(session),
            Occupant::Removed => None,
        }
    }

    /// The called instance.
    pub(crate) fn active(&self) -> Option<Arc<Session>> {
        match self.occupant() {
            Occupant::Active(session) => Some(session),
            Occupant::Joining(_) | Occupant::Removed => None,
        }
    }

    /// The instance being synchronised here: the first, or a replacement.
    pub(crate) fn joining(&self) -> Option<Arc<Session>> {
        let first = match self.occupant() {
            Occupant::Joining(session) => Some(session),
            Occupant::Active(_) | Occupant::Removed => None,
        };
        first.or_else(|| self.successor.lock().clone())
    }

    /// The events of the occupant and of its replacement.
    pub(crate) fn events(&self) -> EventMask {
        let all = [self.session(), self.joining()].into_iter().flatten();
        all.fold(EventMask::NONE, |events, session| events | session.events())
    }

    pub(super) fn instance(&self) -> u64 {
        self.instance.load(Ordering::SeqCst)
    }

    pub(super) fn occupy(&self, occupant: Occupant) {
        *self.occupant.lock() = occupant;
    }

    /// Takes a place in the queue now; later places are served later.
    pub(crate) fn take_place(&self) -> LanePlace {
        let mut place = Box::pin(tokio::task::coop::unconstrained(
            self.lane.clone().lock_owned(),
        ));
        match place.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(lane) => LanePlace(Box::pin(std::future::ready(lane))),
            Poll::Pending => LanePlace(place),
        }
    }

    /// The lane, if it is unlocked and has no waiters.
    pub(crate) fn try_lane(&self) -> Option<Lane> {
        self.lane.clone().try_lock_owned().ok()
    }

    /// Counts an event that waits for the lane in the background. `None`: the limit is reached.
    pub(crate) fn queue(self: &Arc<Self>) -> Option<Queued> {
        let before = self.queued.fetch_add(1, Ordering::SeqCst);
        let queued = Queued(self.clone());
        (before < MAX_QUEUED).then_some(queued)
    }
}

/// One event that waits for a joining plugin.
pub(crate) struct Queued(Arc<Slot>);

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.queued.fetch_sub(1, Ordering::SeqCst);
    }
}
