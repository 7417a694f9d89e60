//! What all plugins of one [`Adaptation`](crate::Adaptation) share: start, accept, stop.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use proto_nri::{ContainerUpdate, UpdateContainersRequest};
use tokio::{
    net::UnixStream,
    sync::{Mutex as AsyncMutex, OwnedRwLockWriteGuard, RwLock, Semaphore, watch},
    time::{Instant, sleep, timeout},
};

use crate::{
    Builder, Snapshot, Source, StartError,
    call::Limit,
    event::HookRequest,
    journal::{Journal, Kept},
    observe::{Kind, Metrics, Observer, PluginEvent, PluginInfo, PluginName, PluginState},
    owners::PluginId,
    rpc::{CallError, one_line},
    session::{self, Origin, Session},
    settings::Settings,
    step,
    sync::{Joining, Roster, Seat, Slot},
    transport::{self, Listener},
    validate::effective_annotation,
    version::Version,
};

/// Connections that have not registered yet, at once (NRI-104).
const MAX_UNREGISTERED: usize = 64;
/// How long a joining plugin waits for a moment without `block_plugin_sync()` before it lets
/// others through (NRI-319).
const QUIET_WAIT: Duration = Duration::from_secs(5);
const QUIET_PAUSE: Duration = Duration::from_secs(1);
/// How long shutdown waits for plugins to end.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);
/// Plugins that have gone and are still listed.
const MAX_GONE: usize = 16;
struct Unobserved;

impl Observer for Unobserved {}

/// Everything that is not one plugin's.
pub(crate) struct Shared {
    pub(crate) runtime_name: String,
    pub(crate) runtime_version: String,
    pub(crate) settings: Settings,
    pub(crate) roster: Arc<Roster>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) metrics: Metrics,
    pub(crate) journal: Journal,
    pub(crate) turn: Arc<AsyncMutex<()>>,
    /// Read by `block_plugin_sync()`, written by those that join.
    pub(crate) joins: Arc<RwLock<()>>,
    source: Arc<dyn Source>,
    in_process: BTreeSet<PluginId>,
    pub(crate) stopping: watch::Sender<bool>,
    /// The last plugins that were closed, as they were then; newest last.
    gone: Mutex<VecDeque<(PluginInfo, Instant)>>,
    started: Instant,
    /// Restarts in a row, per launched plugin.
    pub(crate) restarts: Mutex<BTreeMap<PluginId, u32>>,
}

/// The handle's share: when the last handle goes, plugins are let go.
pub(crate) struct Handle(Arc<Shared>);

impl Deref for Handle {
    type Target = Arc<Shared>;

    fn deref(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.begin_stop("its handle was dropped");
    }
}

impl Shared {
    /// See [`Builder::start`](crate::Builder::start).
    pub(crate) async fn start(builder: Builder) -> Result<Arc<Handle>, StartError> {
        let source = builder.source.ok_or(StartError::NoSource)?;
        let shared = Arc::new(Self {
            runtime_name: builder.runtime_name,
            runtime_version: builder.runtime_version,
            settings: builder.settings,
            roster: Arc::new(Roster::new(source.clone())),
            observer: builder.observer.unwrap_or_else(|| Arc::new(Unobserved)),
            metrics: Metrics::default(),
            journal: Journal::default(),
            turn: Arc::default(),
            joins: Arc::default(),
            source,
            in_process: builder
                .in_process
                .iter()
                .map(|(id, _)| id.clone())
                .collect(),
            stopping: watch::Sender::new(false),
            gone: Mutex::default(),
            started: Instant::now(),
            restarts: Mutex::default(),
        });
        // Lets go of everything should a later step fail.
        let handle = Arc::new(Handle(shared.clone()));
        if let Some(path) = &shared.settings.socket {
            transport::ensure_free(path).await?;
        }
        let in_process = shared.clone().start_in_process(builder.in_process).await?;
        let launched = shared.clone().launch_all().await?;
        shared.clone().join_preinstalled(in_process, launched).await;
        if let Some(path) = &shared.settings.socket {
            let listener = transport::listen(path, shared.settings.socket_mode).await?;
            tokio::spawn(shared.clone().accept(listener));
        }
        Ok(handle)
    }

    /// Accepts connections until the end; no error ends it (NRI-104).
    async fn accept(self: Arc<Self>, listener: Listener) {
        let unregistered = Arc::new(Semaphore::new(MAX_UNREGISTERED));
        let mut pause = Duration::from_millis(100);
        loop {
            let accepted = tokio::select! {
                accepted = listener.listener.accept() => accepted,
                () = self.stopped() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    pause = Duration::from_millis(100);
                    self.clone().admit(stream, &unregistered);
                }
                Err(e) => {
                    tracing::warn!("NRI socket: accept: {e}; trying again in {pause:?}");
                    sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    fn admit(self: Arc<Self>, stream: UnixStream, unregistered: &Arc<Semaphore>) {
        let cred = stream.peer_cred();
        let pid = cred
            .as_ref()
            .ok()
            .and_then(|c| c.pid())
            .and_then(|p| u32::try_from(p).ok());
        let name = PluginName {
            pid,
            ..unknown(Kind::External)
        };
        let reject = |reason: String| self.tell(&name, &PluginEvent::Rejected { reason });
        match cred {
            Ok(cred) if self.settings.allowed_uids.contains(&cred.uid()) => {}
            Ok(cred) => return reject(format!("user {} may not connect", cred.uid())),
            Err(e) => return reject(format!("who it is cannot be told: {e}")),
        }
        let Ok(permit) = unregistered.clone().try_acquire_owned() else {
            return reject(format!(
                "{MAX_UNREGISTERED} connections have not registered yet"
            ));
        };
        let shared = self.clone();
        tokio::spawn(async move {
            let origin = Origin::External { pid };
            let connected = session::establish(&shared, stream, origin).await;
            drop(permit);
            if let Some(connected) = connected {
                session::join_and_watch(shared, connected).await;
            }
        });
    }

    /// The seat of the instance that this one replaces (NRI-1070).
    pub(crate) fn seat_to_replace(&self, session: &Session) -> Option<Arc<Slot>> {
        let replaces = session.version == Version::V1Beta1 || self.settings.replace_same_name;
        let same = |slot: &Arc<Slot>| {
            slot.id == session.id
                && matches!(slot.seat(), Seat::Active(old) if old.kind != Kind::InProcess)
        };
        self.roster
            .slots()
            .into_iter()
            .find(|slot| replaces && same(slot))
    }

    /// The cut for one plugin.
    pub(crate) fn join_one(&self, session: &Arc<Session>) -> Result<(Joining, Snapshot), String> {
        let (mut joining, snapshot) = self.roster.join(std::slice::from_ref(session));
        let joining = joining.pop().ok_or("the list has no place for it")?;
        Ok((joining, snapshot))
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
        step::permitted_updates(&session.id, &session.settings.policy, updates).0
    }

    /// Applies what a plugin asked for when it was synchronised (NRI-327).
    pub(crate) async fn apply_sync_updates(
        &self,
        session: &Session,
        updates: Vec<ContainerUpdate>,
    ) {
        let updates = self.granted(session, updates);
        self.apply(updates).await;
    }

    pub(crate) async fn apply(&self, updates: Vec<ContainerUpdate>) {
        if updates.is_empty() {
            return;
        }
        // A source that waits for an operation that waits for the plugin must not hang both.
        let limit = self.settings.sync_timeout;
        match timeout(limit, self.source.update(updates)).await {
            Ok(failed) => {
                for update in failed {
                    tracing::warn!(
                        container = update.container_id,
                        "an update at synchronisation failed"
                    );
                }
            }
            Err(_) => tracing::warn!("updates at synchronisation took longer than {limit:?}"),
        }
    }

    /// Updates and evictions a plugin sends of its own accord (NRI-440, NRI-441, NRI-570).
    pub(crate) async fn unsolicited(
        &self,
        plugin: &PluginId,
        request: UpdateContainersRequest,
    ) -> Vec<ContainerUpdate> {
        let policy = self.settings.plugin(plugin).policy;
        let (granted, mut failed) = step::permitted_updates(plugin, &policy, request.update);
        let (creating, ready): (Vec<_>, Vec<_>) = granted
            .into_iter()
            .partition(|u| self.roster.is_being_created(&u.container_id));
        failed.extend(creating);
        let (updates, evictions) = (ready.len(), request.evict.len());
        if !ready.is_empty() {
            failed.extend(self.source.update(ready).await);
        }
        for eviction in request.evict {
            let container = eviction.container_id;
            let done = if policy.fields.may_evict() {
                let reason = one_line(&eviction.reason);
                self.source.evict(container.clone(), reason).await
            } else {
                Err("it may not evict".to_owned())
            };
            if let Err(why) = done {
                tracing::warn!(%plugin, container, why, "an eviction failed");
            }
        }
        let event = PluginEvent::Unsolicited {
            updates,
            failed: failed.len(),
            evictions,
        };
        self.tell_of(plugin, &event);
        failed
    }

    /// As [`Shared::tell`], of a plugin that is there or not.
    pub(crate) fn tell_of(&self, plugin: &PluginId, event: &PluginEvent) {
        let slots = self.roster.slots();
        let slot = slots.iter().find(|slot| slot.id == *plugin);
        match slot.map(|slot| slot.seat()) {
            Some(Seat::Joining(session) | Seat::Active(session)) => {
                self.tell(&session.name(), event);
            }
            Some(Seat::Gone) | None => {
                let name = PluginName {
                    id: Some(plugin),
                    ..unknown(Kind::External)
                };
                self.tell(&name, event);
            }
        }
    }

    /// Sends a must-run plugin what it has missed, in order; an answer acknowledges, also an error.
    pub(crate) async fn redeliver(&self, session: &Session) -> Result<(), String> {
        if !session.settings.policy.must_run {
            return Ok(());
        }
        let limit = Limit::of(self.settings.request_timeout(&session.settings.policy));
        for event in self.journal.expired(&session.id) {
            self.tell(&session.name(), &PluginEvent::Dropped { event });
        }
        while let Some(kept) = self.journal.oldest(&session.id) {
            let failed = |e: &CallError| matches!(e, CallError::TimedOut(_) | CallError::Lost(_));
            let (peer, style) = (&session.peer, &session.style);
            let subscribed = session.events().has(kept.event());
            let answer = match &kept {
                _ if !subscribed => Ok(()),
                Kept::StopPod(r) => peer.deliver(style, r, limit).await.answer.map(drop),
                Kept::RemovePod(r) => peer.deliver(style, r, limit).await.answer.map(drop),
                Kept::StopContainer(r) => peer.deliver(style, r, limit).await.answer.map(drop),
                Kept::RemoveContainer(r) => peer.deliver(style, r, limit).await.answer.map(drop),
            };
            if let Err(e) = answer
                && failed(&e)
            {
                return Err(format!("request-timeout: an event it had missed: {e}"));
            }
            self.journal.acknowledged(&session.id);
        }
        Ok(())
    }

    /// Whether the pod's annotation lets it through without required plugins.
    pub(crate) fn is_exempt<R: HookRequest>(&self, request: &R) -> bool {
        let (Some(key), Some(pod)) = (&self.settings.tolerate_missing_annotation, request.pod())
        else {
            return false;
        };
        let container = request.container().map_or("", |c| c.name.as_str());
        let value = effective_annotation(pod, key, container);
        matches!(value, Some("1" | "t" | "T" | "TRUE" | "true" | "True"))
    }

    pub(crate) fn is_in_process(&self, id: &PluginId) -> bool {
        self.in_process.contains(id)
    }

    /// Tells log and observer of a step in a plugin's life.
    pub(crate) fn tell(&self, name: &PluginName<'_>, event: &PluginEvent) {
        match event {
            PluginEvent::Rejected { .. } | PluginEvent::Dropped { .. } => {
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

    /// Keeps what a plugin was, and why it was closed, for [`Shared::plugins`].
    pub(crate) fn remember_gone(&self, session: &Session, reason: &str) {
        let mut info = self.info_of(session, PluginState::Gone);
        info.last_error = Some(reason.to_owned());
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.retain(|(other, _)| other.id != session.id);
        if gone.len() >= MAX_GONE {
            gone.pop_front();
        }
        gone.push_back((info, Instant::now()));
    }

    /// In call order, then those that should be there, then the last that have gone.
    pub(crate) fn plugins(&self) -> Vec<PluginInfo> {
        let slots = self.roster.slots();
        let mut all: Vec<PluginInfo> = Vec::new();
        for slot in &slots {
            all.push(match slot.seat() {
                Seat::Joining(session) => self.info_of(&session, PluginState::Joining),
                Seat::Active(session) => self.info_of(&session, PluginState::Active),
                Seat::Gone => continue,
            });
        }
        let named = self.settings.plugins.iter();
        for (id, _) in named.filter(|(_, s)| s.policy.required || s.policy.must_run) {
            if !slots.iter().any(|s| s.id == *id) {
                all.push(self.absent(id));
            }
        }
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        for (was, at) in gone.iter() {
            match all.iter_mut().find(|info| info.id == was.id) {
                Some(info) if info.state == PluginState::Absent => {
                    info.since = at.elapsed();
                    info.last_error.clone_from(&was.last_error);
                    info.last_error_age = at.elapsed();
                }
                Some(_) => {}
                None => all.push(PluginInfo {
                    since: at.elapsed(),
                    last_error_age: at.elapsed(),
                    ..was.clone()
                }),
            }
        }
        all
    }

    fn info_of(&self, session: &Session, state: PluginState) -> PluginInfo {
        let mut info = self.absent(&session.id);
        let overdue = session.overdue.since();
        (info.state, info.since) = match overdue.filter(|_| state == PluginState::Active) {
            Some(since) => (PluginState::Overdue, since.elapsed()),
            None => (state, session.age()),
        };
        info.kind = Some(session.kind);
        info.pid = session.pid;
        info.version = Some(session.version);
        info.old_style = session.is_old_style();
        info.events = session.events();
        session.stats.fill(&mut info);
        info
    }

    fn absent(&self, id: &PluginId) -> PluginInfo {
        let policy = self.settings.plugin(id).policy;
        PluginInfo {
            id: id.clone(),
            state: PluginState::Absent,
            since: self.started.elapsed(),
            kind: None,
            pid: None,
            version: None,
            old_style: false,
            events: crate::mask::EventMask::NONE,
            required: policy.required,
            must_run: policy.must_run,
            calls: 0,
            errors: 0,
            p50: Duration::ZERO,
            p99: Duration::ZERO,
            backlog: self.journal.backlog(id),
            last_error: None,
            last_error_age: Duration::ZERO,
        }
    }

    /// Resolves when the runtime stops.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping.subscribe();
        async move {
            // An error means that everything is gone.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }

    /// No new plugins; those there are, are asked to go.
    fn begin_stop(&self, reason: &str) -> Vec<Arc<Session>> {
        self.stopping.send_replace(true);
        let sessions: Vec<_> = self
            .roster
            .slots()
            .iter()
            .filter_map(|slot| match slot.seat() {
                Seat::Joining(session) | Seat::Active(session) => Some(session),
                Seat::Gone => None,
            })
            .collect();
        for session in &sessions {
            session.close(self, format!("runtime-stopping: {reason}"));
        }
        sessions
    }

    pub(crate) async fn shutdown(&self, reason: &str) {
        let sessions = self.begin_stop(reason);
        let deadline = Instant::now() + SHUTDOWN_WAIT;
        for session in sessions {
            if session.kind == Kind::InProcess {
                session::shutdown_in_process(&session, reason).await;
            }
            let ended = tokio::time::timeout_at(deadline, session.ended()).await;
            if ended.is_err() {
                tracing::warn!(plugin = %session.name(), "has not ended within {SHUTDOWN_WAIT:?}");
            }
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
