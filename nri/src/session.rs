//! One plugin's life on the runtime's side.
//!
//! ```text
//!   connected ─► registered ─► configured ─► joining ─► active ─► closing ─► ended
//!       │            │              │            │                   ▲
//!       └────────────┴──────────────┴────────────┴── any failure ────┘
//! ```
//!
//! The task that runs [`join_and_watch`] owns the connection and the process, and alone takes the plugin
//! from state to state. Others only ask: [`Session::close`] takes it off the list at once and leaves
//! the rest (Shutdown, closing, killing) to that task, so that no pod's operation waits for it
//! (NRI-1050).

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use proto_nri::{ConfigureRequest, ConfigureResponse, ContainerUpdate, Empty, Event};
use proto_nri::{ShutdownRequest, SynchronizeRequest, SynchronizeResponse};
use tokio::{
    net::UnixStream,
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    Shared, Snapshot,
    call::{Limit, Peer},
    chunks,
    handlers::{Handlers, PluginService},
    mask::EventMask,
    mux::{Mux, MuxError, PLUGIN_SERVICE, RUNTIME_SERVICE},
    observe::{Delivery, Kind, PluginEvent, PluginName, Stats},
    owners::PluginId,
    policy::Outcome,
    request::{Door, Registration},
    rpc::{CallError, Client, ENVELOPE, MAX_MESSAGE, Serving, serve},
    settings::PluginSettings,
    sync::{Joining, SeatGone},
    transport::{Child, Found},
    version::{NRI_VERSION, Style, StyleCell, Version, runtime_services},
};

/// How long an error reply may take to reach the plugin before the connection closes (NRI-1060).
const DELAYED_CLOSE: Duration = Duration::from_millis(250);
/// Longest wait for the answer to Shutdown (NRI-1050).
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);
/// Room left in a message of Synchronize besides the objects (NRI-323).
const SYNC_ROOM: usize = 64 << 10;

/// Since when an answer is overdue: the plugin is skipped until it came.
#[derive(Debug, Default)]
pub(crate) struct Overdue(Mutex<Option<Instant>>);

impl Overdue {
    pub(crate) fn since(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(crate) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A plugin that has been configured.
pub(crate) struct Session {
    pub(crate) id: PluginId,
    pub(crate) kind: Kind,
    pub(crate) pid: Option<u32>,
    pub(crate) version: Version,
    pub(crate) peer: Peer,
    pub(crate) style: StyleCell,
    events: AtomicU32,
    /// It asked for "all", not for each event by name (NRI-331).
    pub(crate) implicit: bool,
    pub(crate) settings: PluginSettings,
    /// Misses in a row; `policy.rs` says what they mean.
    pub(crate) misses: AtomicU32,
    pub(crate) overdue: Overdue,
    /// Events a deprecation notice was given for, as bits.
    deprecated: AtomicU32,
    pub(crate) stats: Stats,
    /// `Some` once it is to be closed, with the reason as Shutdown has it.
    closing: watch::Sender<Option<String>>,
    /// True once nothing is left of it.
    ended: watch::Sender<bool>,
    since: Instant,
}

impl Session {
    pub(crate) fn name(&self) -> PluginName<'_> {
        PluginName {
            id: Some(&self.id),
            kind: self.kind,
            pid: self.pid,
        }
    }

    /// The events it is told of: what it wants and is permitted.
    pub(crate) fn events(&self) -> EventMask {
        EventMask::from_bits(self.events.load(Ordering::Relaxed))
    }

    /// It does not know this event after all.
    pub(crate) fn unsubscribe(&self, event: Event) {
        let bit = EventMask::of(event).bits();
        self.events.fetch_and(!bit, Ordering::Relaxed);
    }

    /// True the first time for each event.
    pub(crate) fn note_deprecated(&self, event: Event) -> bool {
        let bit = EventMask::of(event).bits();
        self.deprecated.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// No more events from now on; the first reason stands.
    pub(crate) fn close(self: &Arc<Self>, shared: &Shared, reason: String) {
        shared.roster.leave(self);
        let first = self.closing.send_if_modified(|closing| {
            let open = closing.is_none();
            closing.get_or_insert_with(|| reason.clone());
            open
        });
        if first {
            shared.remember_gone(self, &reason);
            shared.tell(&self.name(), &PluginEvent::Closed { reason });
            if self.kind == Kind::InProcess {
                self.ended.send_replace(true);
            }
        }
    }

    /// Resolves when nothing is left of the plugin.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // An error means that the session is gone, and so has ended.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// It was closed on purpose, and is not to come back by itself.
    pub(crate) fn was_dismissed(&self) -> bool {
        let closing = self.closing.borrow();
        let reason = closing.as_deref().unwrap_or_default();
        reason.starts_with("runtime-stopping") || reason.starts_with("instance-replaced")
    }

    /// How long ago it was configured.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// It takes plain events as `StateChange`.
    pub(crate) fn is_old_style(&self) -> bool {
        self.style.get() == Style::StateChange
    }

    fn is_closing(&self) -> bool {
        self.closing.borrow().is_some()
    }
}

/// Where a connection comes from.
pub(crate) enum Origin {
    External { pid: Option<u32> },
    Launched { found: Found, child: Child },
}

impl Origin {
    fn kind(&self) -> Kind {
        match self {
            Self::External { .. } => Kind::External,
            Self::Launched { .. } => Kind::Launched,
        }
    }

    fn pid(&self) -> Option<u32> {
        match self {
            Self::External { pid } => *pid,
            Self::Launched { child, .. } => Some(child.pid),
        }
    }

    fn name(&self) -> PluginName<'_> {
        PluginName {
            id: match self {
                Self::External { .. } => None,
                Self::Launched { found, .. } => Some(&found.id),
            },
            kind: self.kind(),
            pid: self.pid(),
        }
    }
}

/// A configured plugin with all that belongs to it.
pub(crate) struct Connected {
    pub(crate) session: Arc<Session>,
    mux: Mux,
    _serving: Serving,
    door: Arc<Door>,
    origin: Origin,
}

impl Connected {
    /// The plugin may ask for updates from now on.
    pub(crate) fn open(&self) {
        self.door.open();
    }
}

/// Registers and configures a plugin. On failure nothing is left of it, and the observer knows.
pub(crate) async fn establish(
    shared: &Arc<Shared>,
    stream: UnixStream,
    origin: Origin,
) -> Option<Connected> {
    let mux = Mux::new(stream, shared.settings.request_timeout);
    match introduce(shared, &mux, &origin).await {
        Ok((session, serving, door)) => Some(Connected {
            session,
            mux,
            _serving: serving,
            door,
            origin,
        }),
        Err(reason) => {
            shared.tell(&origin.name(), &PluginEvent::Rejected { reason });
            mux.close(MuxError::Closed);
            if let Origin::Launched { child, .. } = origin {
                child.stop().await;
            }
            None
        }
    }
}

async fn introduce(
    shared: &Arc<Shared>,
    mux: &Mux,
    origin: &Origin,
) -> Result<(Arc<Session>, Serving, Arc<Door>), String> {
    let client = Client::new(mux.open(PLUGIN_SERVICE));
    let fixed = match origin {
        Origin::Launched { found, .. } => Some(found.id.clone()),
        Origin::External { .. } => None,
    };
    let (door, registered) = Door::new(shared.clone(), fixed);
    let door = Arc::new(door);
    let serving = serve(
        mux.open_for_replies(RUNTIME_SERVICE),
        &runtime_services(),
        door.clone(),
    )
    .await;
    let serving = serving.map_err(|e| format!("cannot serve it: {e}"))?;
    mux.start();
    let limit = shared.settings.registration_timeout;
    let registration = tokio::select! {
        registered = registered => registered.map_err(|_| "it did not register".to_owned())?,
        why = mux.closed() => return Err(format!("before it registered: {why}")),
        () = tokio::time::sleep(limit) => return Err(format!("it did not register within {limit:?}")),
        () = shared.stopped() => return Err("runtime-stopping: before it registered".to_owned()),
    };
    let registration = match registration {
        Ok(registration) => registration,
        Err(refused) => {
            // The plugin is to learn why before the connection closes.
            let _ = timeout(DELAYED_CLOSE, mux.closed()).await;
            return Err(format!("registration refused: {refused}"));
        }
    };
    let session = configure(shared, client, registration, origin).await?;
    Ok((session, serving, door))
}

async fn configure(
    shared: &Arc<Shared>,
    client: Client,
    registration: Registration,
    origin: &Origin,
) -> Result<Arc<Session>, String> {
    let Registration {
        id,
        version,
        nri_version,
    } = registration;
    let name = PluginName {
        id: Some(&id),
        ..origin.name()
    };
    shared.tell(
        &name,
        &PluginEvent::Registered {
            version,
            nri_version,
        },
    );
    let config = match origin {
        Origin::Launched { found, .. } => found.config.clone(),
        Origin::External { .. } => String::new(),
    };
    let peer = Peer::Remote { client, version };
    let (kind, pid) = (origin.kind(), origin.pid());
    new_session(shared, id, kind, pid, version, peer, config).await
}

/// Sends Configure and makes a session of the answer.
async fn new_session(
    shared: &Arc<Shared>,
    id: PluginId,
    kind: Kind,
    pid: Option<u32>,
    version: Version,
    peer: Peer,
    config: String,
) -> Result<Arc<Session>, String> {
    let settings = shared.settings.plugin(&id);
    let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
    let request_timeout = shared.settings.request_timeout(&settings.policy);
    let request = ConfigureRequest {
        config,
        runtime_name: shared.runtime_name.clone(),
        runtime_version: shared.runtime_version.clone(),
        registration_timeout: millis(shared.settings.registration_timeout),
        request_timeout: millis(request_timeout),
        nri_version: NRI_VERSION.to_owned(),
    };
    let limit = Limit::of(request_timeout);
    let reply: ConfigureResponse = peer
        .ask("Configure", &request, limit)
        .await
        .map_err(|e| format!("configure {id}: {e}"))?;
    let wanted = match EventMask::from_wire(reply.events) {
        Ok(wanted) => wanted,
        Err(e) => {
            let reason = format!("configure-failed: {e}");
            send_shutdown(&peer, &reason, limit.ours).await;
            return Err(format!("configure {id}: {e}"));
        }
    };
    let events = wanted & settings.policy.events;
    let session = Arc::new(Session {
        kind,
        pid,
        version,
        peer,
        style: StyleCell::new(version),
        events: AtomicU32::new(events.bits()),
        implicit: reply.events == 0,
        settings,
        misses: AtomicU32::new(0),
        overdue: Overdue::default(),
        deprecated: AtomicU32::new(0),
        stats: Stats::default(),
        closing: watch::Sender::new(None),
        ended: watch::Sender::new(false),
        since: Instant::now(),
        id,
    });
    shared.tell(&session.name(), &PluginEvent::Configured { events });
    Ok(session)
}

/// Configures a plugin of this process.
pub(crate) async fn establish_in_process(
    shared: &Arc<Shared>,
    id: PluginId,
    handlers: Handlers,
) -> Result<Arc<Session>, String> {
    let peer = Peer::InProcess(Arc::new(PluginService::new(handlers)));
    let version = Version::V1Beta1;
    new_session(
        shared,
        id,
        Kind::InProcess,
        None,
        version,
        peer,
        String::new(),
    )
    .await
}

/// Tells a plugin all there is (NRI-320…325), and sends what it has missed. Gives its updates.
pub(crate) async fn synchronize(
    shared: &Shared,
    session: &Session,
    all: Snapshot,
) -> Result<Vec<ContainerUpdate>, String> {
    let per_chunk = shared.settings.sync_timeout(&session.settings.policy);
    let (pods, containers) = (all.pods.len(), all.containers.len());
    let begun = Instant::now();
    let max = match session.peer {
        Peer::Remote { .. } => MAX_MESSAGE - ENVELOPE - SYNC_ROOM,
        Peer::InProcess(_) => usize::MAX,
    };
    let chunks = chunks::chunks(all, max);
    for object in &chunks.too_big {
        tracing::error!(plugin = %session.id, object, "too big for any message: the plugin is not told of it");
    }
    let mut updates = Vec::new();
    let mut done = Delivery::of_sync(&session.id);
    let deadline = begun + per_chunk * 3;
    for message in chunks.messages {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Limit::of(per_chunk.min(left));
        let asked = Instant::now();
        let reply: Result<SynchronizeResponse, _> =
            session.peer.ask("Synchronize", &message, limit).await;
        done.took = asked.elapsed();
        done.outcome = outcome_of(&reply);
        done.updates = reply.as_ref().map_or(0, |reply| reply.update.len());
        shared.metrics.record("Synchronize", &done);
        let reply = reply.map_err(|e| format!("synchronize-failed: {e}"))?;
        if !takes_parts(&message, &reply) {
            return Err("synchronize-failed: it cannot take the list in parts".to_owned());
        }
        updates = reply.update;
    }
    let took = begun.elapsed();
    shared.redeliver(session).await?;
    let event = PluginEvent::Synchronized {
        pods,
        containers,
        took,
    };
    shared.tell(&session.name(), &event);
    Ok(updates)
}

/// Whether this answers a part of the list as it must be answered (NRI-320).
pub(crate) fn takes_parts(part: &SynchronizeRequest, reply: &SynchronizeResponse) -> bool {
    !part.more || (reply.more && reply.update.is_empty())
}

fn outcome_of<T>(answer: &Result<T, CallError>) -> Outcome {
    match answer {
        Ok(_) => Outcome::Answered,
        Err(CallError::TimedOut(_)) => Outcome::TimedOut,
        Err(CallError::Lost(why)) => Outcome::Lost(why.clone()),
        Err(CallError::BadReply(why)) => Outcome::Garbled(why.clone()),
        Err(e) => Outcome::Refused(e.to_string()),
    }
}

/// Takes a configured plugin through its cut, unless another thing ends it first.
async fn join(shared: &Arc<Shared>, connected: &Connected) -> Result<(), String> {
    let session = &connected.session;
    let (joining, snapshot) = {
        // Runtimes that use block_plugin_sync() hold us here; others never do. The cut is all that
        // must not fall into their operations: later ones find the plugin joining, and wait for it.
        let _quiet = shared.quiet().await;
        cut_in(shared, session).await?
    };
    let synchronized = tokio::select! {
        updates = synchronize(shared, session, snapshot) => updates,
        why = connected.mux.closed() => Err(format!("synchronize-failed: {why}")),
        () = shared.stopped() => Err("runtime-stopping: while it joined".to_owned()),
    };
    let updates = synchronized?;
    connected.open();
    shared.apply_sync_updates(session, updates).await;
    activate(shared, joining).map_err(|e| e.to_string())
}

/// The cut; on the seat of an older instance if there is one.
async fn cut_in(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
) -> Result<(Joining, Snapshot), String> {
    if let Some(slot) = shared.seat_to_replace(session) {
        let limit = shared.settings.sync_timeout;
        let joined = timeout(limit, shared.roster.join_as(slot, session.clone())).await;
        let joined =
            joined.map_err(|_| "synchronize-failed: events of the older instance do not end")?;
        if let Some(joined) = joined {
            return Ok(joined);
        }
        // The older one has gone in the meantime.
    }
    shared.join_one(session)
}

/// The plugin's events begin; the instance it replaces is closed.
pub(crate) fn activate(shared: &Shared, joining: Joining) -> Result<(), SeatGone> {
    let id = joining.slot.id.clone();
    if let Some(old) = joining.complete()? {
        old.close(
            shared,
            format!("instance-replaced: a newer {id} has connected"),
        );
    }
    Ok(())
}

/// A configured plugin to its end.
pub(crate) async fn join_and_watch(shared: Arc<Shared>, connected: Connected) {
    if let Err(reason) = join(&shared, &connected).await {
        let session = &connected.session;
        shared.tell(
            &session.name(),
            &PluginEvent::Rejected {
                reason: reason.clone(),
            },
        );
        session.close(&shared, reason);
    }
    watch(shared, connected).await;
}

/// Waits for the end of an active plugin, and ends it.
pub(crate) async fn watch(shared: Arc<Shared>, connected: Connected) {
    let Connected {
        session,
        mux,
        origin,
        ..
    } = connected;
    let mut closing = session.closing.subscribe();
    let lost = tokio::select! {
        _ = closing.wait_for(Option::is_some) => false,
        why = mux.closed() => {
            session.close(&shared, format!("connection-lost: {why}"));
            true
        }
    };
    if !lost {
        let reason = session.closing.borrow().clone().unwrap_or_default();
        let limit = shared.settings.request_timeout.min(SHUTDOWN_LIMIT);
        send_shutdown(&session.peer, &reason, limit).await;
    }
    mux.close(MuxError::Closed);
    match origin {
        Origin::External { .. } => {}
        Origin::Launched { found, child } => {
            child.stop().await;
            shared.clone().restart(&session, found);
        }
    }
    session.ended.send_replace(true);
}

/// An in-process plugin has nothing to watch; this ends a synchronised one at shutdown.
pub(crate) async fn shutdown_in_process(session: &Session, reason: &str) {
    send_shutdown(&session.peer, reason, SHUTDOWN_LIMIT).await;
}

/// Says goodbye. The answer does not matter; v1alpha1 has no place for the reason.
async fn send_shutdown(peer: &Peer, reason: &str, limit: Duration) {
    let limit = Limit::of(limit.min(SHUTDOWN_LIMIT));
    let alpha = matches!(
        peer,
        Peer::Remote {
            version: Version::V1Alpha1,
            ..
        }
    );
    let reason = reason.to_owned();
    let _: Result<Empty, _> = if alpha {
        peer.ask("Shutdown", &Empty {}, limit).await
    } else {
        peer.ask("Shutdown", &ShutdownRequest { reason }, limit)
            .await
    };
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
