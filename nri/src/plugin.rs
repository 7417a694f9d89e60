//! State of one configured plugin: identity, settings, progress. Other modules act on it.

use std::{
    collections::BTreeSet,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use proto_nri::Event;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    closing::{CloseReason, Closing},
    mask::EventMask,
    metrics::Stats,
    observe::{Kind, PluginName},
    peer::{self, Peer},
    plugin_id::PluginId,
    settings::PluginSettings,
    source::Snapshot,
    wire::event::{HookRequest, container_id},
    wire::rpc::CallError,
    wire::version::{Style, StyleCell},
};

/// Since when an answer is overdue: the plugin is skipped until it arrives.
#[derive(Debug, Default)]
pub(crate) struct Overdue(Mutex<Option<Instant>>);

impl Overdue {
    pub(crate) fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }

    pub(crate) fn begin(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    pub(crate) fn end(&self) {
        *self.0.lock() = None;
    }
}

/// A plugin that has been configured.
pub(crate) struct Session {
    pub(crate) id: PluginId,
    pub(crate) kind: Kind,
    pub(crate) pid: Option<u32>,
    pub(crate) peer: Peer,
    pub(crate) style: StyleCell,
    events: AtomicU32,
    /// It asked for "all" instead of each event by name (NRI-331).
    implicit: bool,
    /// The runtime's settings, with the plugin's own failure policy.
    pub(crate) settings: PluginSettings,
    /// Misses in a row; `policy.rs` decides their effect.
    pub(crate) misses: AtomicU32,
    pub(crate) overdue: Overdue,
    /// Containers that its late answer creates only at it: it undoes them, and gets no other event
    /// of them (G-34).
    left_out: Mutex<BTreeSet<String>>,
    /// A newer instance of it is called instead.
    shadowed: Arc<AtomicBool>,
    /// Operations that need its answer do not wait for its synchronisation.
    unwaited: AtomicBool,
    /// One of these operations did not wait.
    passed_by: AtomicBool,
    /// A kept event may be sendable now, or it is no longer called.
    pub(crate) kept: Notify,
    /// Events whose deprecation was reported, as bits.
    deprecated: AtomicU32,
    /// Shared with the record of it after its end.
    pub(crate) stats: Arc<Stats>,
    /// `Some` once it is to be closed.
    closing: watch::Sender<Option<Closing>>,
    /// True once nothing is left of it.
    ended: watch::Sender<bool>,
    since: Instant,
}

/// A plugin's transport.
pub(crate) struct Link {
    pub(crate) kind: Kind,
    pub(crate) pid: Option<u32>,
    pub(crate) peer: Peer,
}

impl Session {
    /// `events`: those it gets; and whether it asked for "all".
    pub(crate) fn new(
        id: PluginId,
        link: Link,
        events: EventMask,
        implicit: bool,
        settings: PluginSettings,
    ) -> Self {
        let style = match link.peer {
            Peer::Remote(_) => Style::Untried,
            Peer::InProcess(_) => Style::Dedicated,
        };
        Self {
            id,
            kind: link.kind,
            pid: link.pid,
            peer: link.peer,
            style: StyleCell::new(style),
            events: AtomicU32::new(events.bits()),
            implicit,
            settings,
            misses: AtomicU32::new(0),
            overdue: Overdue::default(),
            left_out: Mutex::default(),
            shadowed: Arc::default(),
            unwaited: AtomicBool::new(false),
            passed_by: AtomicBool::new(false),
            kept: Notify::new(),
            deprecated: AtomicU32::new(0),
            stats: Arc::default(),
            closing: watch::Sender::new(None),
            ended: watch::Sender::new(false),
            since: Instant::now(),
        }
    }

    pub(crate) fn name(&self) -> PluginName<'_> {
        PluginName {
            id: Some(&self.id),
            kind: self.kind,
            pid: self.pid,
        }
    }

    /// The events it gets: subscribed and permitted.
    pub(crate) fn events(&self) -> EventMask {
        EventMask::from_bits(self.events.load(Ordering::Relaxed))
    }

    /// Whether it gets this event.
    pub(crate) fn selects<R: HookRequest>(&self, request: &R) -> bool {
        self.events().has(R::EVENT) && !self.is_left_out(request)
    }

    /// Whether the request's container is left out. Its removal is the last event of it.
    pub(crate) fn is_left_out<R: HookRequest>(&self, request: &R) -> bool {
        let mut left_out = self.left_out.lock();
        match R::EVENT {
            Event::RemoveContainer => left_out.remove(container_id(request)),
            _ => left_out.contains(container_id(request)),
        }
    }

    /// Stops sending it the events of the request's container.
    pub(crate) fn leave_out<R: HookRequest>(&self, request: &R) {
        let container = container_id(request).to_owned();
        self.left_out.lock().insert(container);
    }

    /// Sends it the events of the containers in its new list again. The undo of a creation that was
    /// rolled back may still be on its way, so that container stays left out.
    pub(crate) fn take_in_listed(&self, list: &Snapshot) {
        let mut left_out = self.left_out.lock();
        for container in &list.containers {
            left_out.remove(&container.id);
        }
    }

    /// Sends it the events of the request's container again.
    pub(crate) fn take_in<R: HookRequest>(&self, request: &R) {
        self.left_out.lock().remove(container_id(request));
    }

    /// Unsubscribes the plugin from an event that it does not implement. Returns false if it
    /// requested the event by name, or if it is required and this is the last event that needs it.
    pub(crate) fn unsubscribe(&self, event: Event) -> bool {
        let left = self.events() - EventMask::of(event);
        let may = self.implicit && self.settings.policy.check_events(left).is_ok();
        if may {
            self.events.store(left.bits(), Ordering::Relaxed);
        }
        may
    }

    /// Sends it an event that it has missed.
    pub(crate) async fn notify_again<R: HookRequest>(
        &self,
        request: &R,
        limit: Duration,
    ) -> Result<(), CallError> {
        let delivered = self.peer.deliver(&self.style, request, limit, limit).await;
        peer::note(&self.id, R::EVENT, &delivered.left_out);
        delivered.answer.map(drop)
    }

    /// True the first time for each event.
    pub(crate) fn note_deprecated(&self, event: Event) -> bool {
        let bit = EventMask::of(event).bits();
        self.deprecated.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Notes why it is to be closed; true the first time. An in-process plugin has ended with that.
    pub(crate) fn is_to_close(&self, reason: &Closing) -> bool {
        let first = self.closing.send_if_modified(|closing| {
            let open = closing.is_none();
            closing.get_or_insert_with(|| reason.clone());
            open
        });
        self.kept.notify_one();
        if first && self.kind == Kind::InProcess {
            self.has_ended();
        }
        first
    }

    /// Resolves with the reason when it is to be closed.
    pub(crate) async fn closing(&self) -> Closing {
        let mut closing = self.closing.subscribe();
        loop {
            if let Some(reason) = &*closing.borrow_and_update() {
                return reason.clone();
            }
            // Never an error: `self` has the sender.
            let _ = closing.changed().await;
        }
    }

    /// All its resources are released.
    pub(crate) fn has_ended(&self) {
        self.ended.send_replace(true);
    }

    /// Resolves when all its resources are released.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // An error means that the session was dropped, and so has ended.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// It was closed on purpose, and is not restarted.
    pub(crate) fn was_dismissed(&self) -> bool {
        use CloseReason::{InstanceReplaced, RuntimeStopping};
        matches!(
            self.close_reason(),
            Some(RuntimeStopping | InstanceReplaced)
        )
    }

    /// It ended its connection itself.
    pub(crate) fn was_lost(&self) -> bool {
        self.close_reason() == Some(CloseReason::ConnectionLost)
    }

    fn close_reason(&self) -> Option<CloseReason> {
        self.closing.borrow().as_ref().map(|closing| closing.reason)
    }

    /// Time since it was configured.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// It takes plain events as `StateChange`.
    pub(crate) fn is_old_style(&self) -> bool {
        self.style.get() == Style::StateChange
    }

    pub(crate) fn set_shadowed(&self, shadowed: bool) {
        self.shadowed.store(shadowed, Ordering::SeqCst);
        self.kept.notify_one();
    }

    pub(crate) fn shadowed(&self) -> Arc<AtomicBool> {
        self.shadowed.clone()
    }

    pub(crate) fn is_not_waited_for(&self) {
        self.unwaited.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        !self.unwaited.load(Ordering::SeqCst)
    }

    /// An event needed its answer, and did not wait for its synchronisation.
    pub(crate) fn pass_by(&self) {
        self.passed_by.store(true, Ordering::SeqCst);
    }

    pub(crate) fn was_passed_by(&self) -> bool {
        self.passed_by.load(Ordering::SeqCst)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.borrow().is_some()
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Session({}, closing: {})",
            self.name(),
            self.is_closing()
        )
    }
}

#[cfg(test)]
impl Session {
    /// A session that takes everything.
    pub(crate) fn for_tests(id: &str) -> Arc<Self> {
        use crate::plugin_side::{handlers::Handlers, service::PluginService};
        let service = PluginService::in_process(Handlers::new());
        let link = Link {
            kind: Kind::InProcess,
            pid: None,
            peer: Peer::InProcess(Arc::new(service)),
        };
        let (id, settings) = (id.parse().unwrap(), PluginSettings::default());
        Arc::new(Self::new(id, link, EventMask::ALL, false, settings))
    }
}
