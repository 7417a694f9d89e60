//! State shared by all plugins of one [`Adaptation`](crate::Adaptation).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use proto_nri::{ContainerUpdate, CreateContainerRequest, Event};
use tokio::{
    sync::{
        Mutex as AsyncMutex, OwnedMutexGuard, OwnedRwLockWriteGuard, RwLock as AsyncRwLock,
        Semaphore, watch,
    },
    time::{Instant, sleep, timeout},
};

use crate::{
    annotation::{effective_annotation, go_bool},
    backlog::Backlog,
    closing::{CloseReason, Closing},
    failed_joins::FailedJoins,
    gone::GonePlugins,
    identity,
    limits::Limits,
    metrics::Metrics,
    observe::{Delivery, Kind, Observer, PluginEvent, PluginName},
    operation,
    owners::PluginId,
    pace::Pace,
    plugin::Session,
    policy::Class,
    roster::{Roster, Slot},
    settings::{PluginSettings, Settings, Timeouts},
    source::{FailedUpdate, Source},
    wire::{
        event::HookRequest,
        mux::Watches,
        rpc::{ENVELOPE, MAX_MESSAGE, Metadata, ROOM},
        version::Version,
    },
};

/// How long a joining plugin waits for a moment without `block_plugin_sync()` before it lets
/// others through (NRI-319).
const QUIET_WAIT: Duration = Duration::from_secs(5);
const QUIET_PAUSE: Duration = Duration::from_secs(1);
/// Instances of one id that are in the shadow of a newer one.
const MAX_SHADOWS: usize = 8;

struct Unobserved;

impl Observer for Unobserved {}

/// What plugins are told the runtime is.
pub(crate) struct Names {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// Everything that is not one plugin's.
pub(crate) struct Shared {
    pub(crate) runtime_name: String,
    pub(crate) runtime_version: String,
    pub(crate) settings: Settings,
    timeouts: RwLock<Timeouts>,
    pub(crate) roster: Arc<Roster>,
    /// Instances that a newer one is called instead of; newest last.
    shadows: Mutex<Vec<Arc<Session>>>,
    /// Held by whoever joins under an id.
    joining: Mutex<BTreeMap<PluginId, Arc<AsyncMutex<()>>>>,
    pub(crate) observer: Arc<dyn Observer>,
    /// What calls carry beside their request.
    pub(crate) metadata: Option<Metadata>,
    /// Makes who sees the bytes of a connection.
    pub(crate) watches: Option<Watches>,
    pub(crate) metrics: Metrics,
    pub(crate) backlog: Backlog,
    pub(crate) failed_joins: FailedJoins,
    pub(crate) turn: Arc<AsyncMutex<()>>,
    /// Read by `block_plugin_sync()`, written by those that join.
    pub(crate) joins: Arc<AsyncRwLock<()>>,
    pub(crate) source: Arc<dyn Source>,
    in_process: BTreeSet<PluginId>,
    /// Those of the plugin directory.
    launched: Mutex<BTreeSet<PluginId>>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) pace: Pace,
    /// Of programs of plugins that connect.
    pub(crate) lookups: Arc<Semaphore>,
    pub(crate) stopping: watch::Sender<bool>,
    pub(crate) gone: GonePlugins,
    pub(crate) started: Instant,
    /// Restarts in a row, per launched plugin.
    pub(crate) restarts: Mutex<BTreeMap<PluginId, u32>>,
}

impl Shared {
    pub(crate) fn new(
        runtime: Names,
        settings: Settings,
        source: Arc<dyn Source>,
        observer: Option<Arc<dyn Observer>>,
        metadata: Option<Metadata>,
        watches: Option<Watches>,
        in_process: BTreeSet<PluginId>,
    ) -> Self {
        Self {
            runtime_name: runtime.name,
            runtime_version: runtime.version,
            timeouts: RwLock::new(settings.timeouts),
            settings,
            roster: Arc::new(Roster::new(source.clone())),
            shadows: Mutex::default(),
            joining: Mutex::default(),
            observer: observer.unwrap_or_else(|| Arc::new(Unobserved)),
            metadata,
            watches,
            metrics: Metrics::default(),
            backlog: Backlog::default(),
            failed_joins: FailedJoins::default(),
            turn: Arc::default(),
            joins: Arc::default(),
            source,
            in_process,
            launched: Mutex::default(),
            limits: Arc::default(),
            pace: Pace::default(),
            lookups: identity::lookups(),
            stopping: watch::Sender::new(false),
            gone: GonePlugins::default(),
            started: Instant::now(),
            restarts: Mutex::default(),
        }
    }

    /// As they are now.
    pub(crate) fn timeouts(&self) -> Timeouts {
        *self.timeouts.read()
    }

    pub(crate) fn set_timeouts(&self, timeouts: Timeouts) {
        *self.timeouts.write() = timeouts;
    }

    /// Counts a call, and tells whoever keeps counts of their own.
    pub(crate) fn count(&self, operation: &'static str, call: &Delivery) {
        if self.metrics.record(operation, call) {
            self.observer.called(operation, call);
        }
    }

    /// A plugin gets no more events from now on; the first reason stands. What is left of it, the task
    /// that watches it ends.
    pub(crate) fn close(&self, session: &Arc<Session>, reason: Closing) {
        // Marked first: whoever puts it among the shadows meanwhile looks for the mark afterwards.
        let first = session.is_to_close(&reason);
        self.roster.leave(session);
        self.shadows.lock().retain(|s| !Arc::ptr_eq(s, session));
        if first {
            let reason = reason.to_string();
            self.remember_gone(session, &reason);
            self.tell_count();
            self.tell(&session.name(), &PluginEvent::Closed { reason });
        }
    }

    /// It failed before its events began.
    pub(crate) fn reject(&self, session: &Arc<Session>, reason: Closing) {
        let rejected = PluginEvent::Rejected {
            reason: reason.to_string(),
        };
        self.tell(&session.name(), &rejected);
        self.close(session, reason);
    }

    /// A newer instance is called instead of this one, until either goes. The oldest beyond the bound is closed.
    pub(crate) fn shadow(&self, session: Arc<Session>) {
        session.set_shadowed(true);
        let oldest = {
            let mut shadows = self.shadows.lock();
            shadows.push(session.clone());
            let mut own = shadows.iter().filter(|shadow| shadow.id == session.id);
            let full = own.clone().count() > MAX_SHADOWS;
            own.next().filter(|_| full).cloned()
        };
        if let Some(oldest) = oldest {
            let why = format!("{MAX_SHADOWS} newer ones are in its place");
            self.close(&oldest, CloseReason::InstanceReplaced.because(why));
        }
        if session.is_closing() {
            self.shadows.lock().retain(|s| !Arc::ptr_eq(s, &session));
            return;
        }
        self.tell(&session.name(), &PluginEvent::Shadowed);
    }

    pub(crate) fn has_shadow(&self, id: &PluginId) -> bool {
        self.shadows.lock().iter().any(|session| session.id == *id)
    }

    /// Those that are there and not called.
    pub(crate) fn shadows(&self) -> Vec<Arc<Session>> {
        self.shadows.lock().clone()
    }

    /// The newest of those that are shadowed.
    pub(crate) fn leave_shadow(&self, id: &PluginId) -> Option<Arc<Session>> {
        let mut shadows = self.shadows.lock();
        let newest = shadows.iter().rposition(|session| session.id == *id)?;
        Some(shadows.remove(newest))
    }

    /// The right to be the one that joins under this id.
    pub(crate) async fn alone(&self, id: &PluginId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut joining = self.joining.lock();
            joining.retain(|_, lock| Arc::strong_count(lock) > 1);
            joining.entry(id.clone()).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// The slot of the instance that this one replaces (NRI-1070).
    pub(crate) fn seat_to_replace(&self, session: &Session) -> Option<Arc<Slot>> {
        let replaces = session.version == Version::V1Beta1 || self.settings.replace_same_name;
        let same = |slot: &Arc<Slot>| {
            slot.id == session.id && slot.active().is_some_and(|old| old.kind != Kind::InProcess)
        };
        self.roster
            .slots()
            .into_iter()
            .find(|slot| replaces && same(slot))
    }

    /// Waits for a moment in which no `block_plugin_sync()` is held.
    pub(crate) async fn quiet(&self) -> OwnedRwLockWriteGuard<()> {
        loop {
            match timeout(QUIET_WAIT, self.joins.clone().write_owned()).await {
                Ok(guard) => return guard,
                Err(_) => {
                    tracing::warn!("a plugin waits to be synchronised: operations hold it back");
                    sleep(QUIET_PAUSE).await;
                }
            }
        }
    }

    pub(crate) fn granted(
        &self,
        session: &Session,
        updates: Vec<ContainerUpdate>,
    ) -> Vec<ContainerUpdate> {
        operation::permitted_updates(&session.id, &session.settings.policy, updates).0
    }

    /// Applies what a plugin asked for when it was synchronised (NRI-327).
    pub(crate) async fn apply_sync_updates(
        &self,
        session: &Session,
        updates: Vec<ContainerUpdate>,
    ) {
        let updates = self.granted(session, updates);
        self.apply(updates, |_| vec![session.id.clone()]).await;
    }

    /// `askers`: whose wish the update of a container is.
    pub(crate) async fn apply(
        &self,
        updates: Vec<ContainerUpdate>,
        askers: impl Fn(&str) -> Vec<PluginId>,
    ) {
        if updates.is_empty() {
            return;
        }
        // A source that waits for an operation that waits for the plugin must not hang both.
        let limit = self.timeouts().sync;
        match timeout(limit, self.source.update(updates)).await {
            Ok(failed) => {
                for FailedUpdate { update, why } in failed {
                    let id = &update.container_id;
                    let what = format!("update of container {id} at synchronisation failed: {why}");
                    for plugin in askers(id) {
                        self.wish_failed(&plugin, &what);
                    }
                }
            }
            Err(_) => tracing::warn!("updates at synchronisation took longer than {limit:?}"),
        }
    }

    /// As [`Shared::tell`], of a plugin that is there or not.
    pub(crate) fn tell_of(&self, plugin: &PluginId, event: &PluginEvent) {
        let slots = self.roster.slots();
        let slot = slots.iter().find(|slot| slot.id == *plugin);
        match slot.and_then(|slot| slot.session()) {
            Some(session) => self.tell(&session.name(), event),
            None => {
                let name = PluginName {
                    id: Some(plugin),
                    ..unknown(Kind::External)
                };
                self.tell(&name, event);
            }
        }
    }

    /// Says that events which were kept for a plugin will not be sent.
    pub(crate) fn give_up(&self, plugin: &PluginId, events: Vec<Event>) {
        for event in events {
            self.tell_of(plugin, &PluginEvent::Dropped { event });
        }
    }

    /// Why plugins could not be told of a container any more once it is what they have made of it.
    pub(crate) fn grew_too_long(
        &self,
        request: &CreateContainerRequest,
        deliveries: &[Delivery],
    ) -> Option<String> {
        let by: Vec<_> = deliveries.iter().filter(|d| d.adjusted).collect();
        let limit = MAX_MESSAGE - ENVELOPE - ROOM;
        let is_remote = |slot: &Arc<Slot>| slot.session().is_some_and(|s| s.peer.is_remote());
        if by.is_empty() || !self.roster.slots().iter().any(is_remote) {
            return None;
        }
        let length = request.encoded_len();
        let by: Vec<_> = by.iter().map(|d| d.plugin.to_string()).collect();
        (length > limit).then(|| {
            format!(
                "container too long for plugins as adjusted by {}: {length} bytes exceed the limit of {limit}",
                by.join(", ")
            )
        })
    }

    /// Whether the pod's annotation lets it through without required plugins.
    pub(crate) fn is_exempt<R: HookRequest>(&self, request: &R) -> bool {
        let key = self.settings.tolerate_missing_annotation.as_ref();
        let (Some(key), Some(pod)) = (key, request.pod()) else {
            return false;
        };
        let container = request.container().map_or("", |c| c.name.as_str());
        effective_annotation(pod, key, container).and_then(go_bool) == Some(true)
    }

    pub(crate) fn is_in_process(&self, id: &PluginId) -> bool {
        self.in_process.contains(id)
    }

    /// Nobody else may have this id from now on, whether the plugin is there or not: it has the rights of a file of
    /// the plugin directory.
    pub(crate) fn reserve(&self, id: &PluginId) {
        self.launched.lock().insert(id.clone());
    }

    pub(crate) fn is_launched(&self, id: &PluginId) -> bool {
        self.launched.lock().contains(id)
    }

    /// How long a plugin may take to be synchronised, whichever it is.
    pub(crate) fn longest_join(&self) -> Duration {
        let Settings {
            plugins,
            other_plugins,
            ..
        } = &self.settings;
        let all = plugins.values().chain([other_plugins]);
        let totals = all.map(|settings| self.timeouts().sync_of(&settings.policy).1);
        totals.max().unwrap_or_default()
    }

    /// When the operation is to have its answers, all plugins together. Teardown and notifications are
    /// everybody's, however long it takes.
    pub(crate) fn deadline_of(&self, event: Event) -> Option<Instant> {
        let limit = self.timeouts().operation?;
        (Class::of(event) == Class::Setup).then(|| Instant::now() + limit)
    }

    /// How a plugin is treated: with what it said itself, while it is there.
    pub(crate) fn settings_of(&self, id: &PluginId, session: Option<&Session>) -> PluginSettings {
        session.map_or_else(|| self.settings.plugin(id), |s| s.settings.clone())
    }

    /// Tells log and observer of a step in a plugin's life.
    pub(crate) fn tell(&self, name: &PluginName<'_>, event: &PluginEvent) {
        match event {
            PluginEvent::Rejected { .. }
            | PluginEvent::Dropped { .. }
            | PluginEvent::Shortened { .. } => {
                tracing::warn!(plugin = %name, ?event);
            }
            PluginEvent::Deprecated { event } => tracing::warn!(
                plugin = %name,
                "takes {} as StateChange only, which is deprecated",
                crate::mask::event_name(*event)
            ),
            _ => tracing::info!(plugin = %name, ?event),
        }
        self.observer.plugin(name, event);
    }

    /// What a plugin asked for could not be done: an error of that plugin, though it answered.
    pub(crate) fn wish_failed(&self, plugin: &PluginId, what: &str) {
        tracing::warn!(%plugin, "{what}");
        let slots = self.roster.slots();
        let named = slots.iter().filter(|slot| slot.id == *plugin);
        for session in named.filter_map(|slot| slot.session()) {
            session.stats.blame(what);
        }
    }

    /// Tells the observer how many there are.
    pub(crate) fn tell_count(&self) {
        let slots = self.roster.slots();
        let active = |slot: &&Arc<Slot>| slot.active().is_some();
        self.observer.active(slots.iter().filter(active).count());
    }

    /// Resolves when the runtime stops.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping.subscribe();
        async move {
            // An error means that everything is gone.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }
}

pub(crate) fn unknown<'a>(kind: Kind) -> PluginName<'a> {
    PluginName {
        id: None,
        kind,
        pid: None,
    }
}
