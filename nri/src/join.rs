//! One plugin's life on the runtime's side.
//!
//! ```text
//!   connected ─► registered ─► configured ─► joining ─► active ─► closing ─► ended
//!       │            │              │            │                   ▲
//!       └────────────┴──────────────┴────────────┴── any failure ────┘
//! ```
//!
//! The task that runs [`join_and_watch`] owns the connection and the process, and alone takes the plugin
//! from state to state. Others only ask: [`Shared::close`] takes it off the list at once and leaves
//! the rest (Shutdown, closing, killing) to that task, so that no pod's operation waits for it.

use std::{sync::Arc, time::Duration};

use proto_nri::{ConfigureRequest, ConfigureResponse, ContainerUpdate, Empty};
use proto_nri::{ShutdownRequest, SynchronizeRequest, SynchronizeResponse};
use tokio::{
    net::UnixStream,
    time::{Instant, timeout},
};

use crate::{
    chunks,
    mask::EventMask,
    observe::{Delivery, Kind, PluginEvent, PluginName},
    owners::PluginId,
    peer::{Limit, Peer},
    plugin::{Link, Session},
    plugin_side::handlers::{Handlers, PluginService},
    policy::Outcome,
    register::{Registration, RuntimeService},
    roster::{Joining, SlotGone},
    shared::Shared,
    source::Snapshot,
    violate,
    wire::{
        mux::{Mux, MuxError, PLUGIN_SERVICE, RUNTIME_SERVICE},
        rpc::{CallError, Client, Code, ENVELOPE, MAX_MESSAGE, Serving, Status, serve},
        transport::{Child, Found},
        version::{NRI_VERSION, Version, runtime_services},
    },
};

/// How long an error reply may take to reach the plugin before the connection closes (NRI-1060).
const DELAYED_CLOSE: Duration = Duration::from_millis(250);
/// Longest wait for the answer to Shutdown (NRI-1050).
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);
/// Room left in a message of Synchronize besides the objects (NRI-323).
const SYNC_ROOM: usize = 64 << 10;

/// Origin of a connection.
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
    service: Arc<RuntimeService>,
    origin: Origin,
}

impl Connected {
    /// The plugin may ask for updates from now on.
    pub(crate) fn open(&self) {
        self.service.open(self.session.shadowed());
    }
}

/// Registers and configures a plugin. On failure nothing is left of it, and the observer knows.
pub(crate) async fn establish(
    shared: &Arc<Shared>,
    stream: UnixStream,
    origin: Origin,
) -> Option<Connected> {
    let mux = Mux::new(stream, shared.timeouts().request);
    match introduce(shared, &mux, &origin).await {
        Ok((session, serving, service)) => Some(Connected {
            session,
            mux,
            _serving: serving,
            service,
            origin,
        }),
        Err(reason) => {
            if let Origin::Launched { found, child } = &origin {
                shared.remember_failed(&found.id, Some(child.pid), &reason);
            }
            shared.tell(&origin.name(), &PluginEvent::Rejected { reason });
            // The plugin is to learn why before the connection closes; a stop waits for nobody.
            tokio::select! {
                _ = mux.closed() => {}
                () = shared.stopped() => {}
                () = tokio::time::sleep(DELAYED_CLOSE) => {}
            }
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
) -> Result<(Arc<Session>, Serving, Arc<RuntimeService>), String> {
    let client = Client::new(mux.open(PLUGIN_SERVICE), shared.metadata.clone());
    let fixed = match origin {
        Origin::Launched { found, .. } => Some(found.id.clone()),
        Origin::External { .. } => None,
    };
    let (service, registered) = RuntimeService::new(shared.clone(), fixed);
    let service = Arc::new(service);
    let serving = serve(
        mux.open_for_replies(RUNTIME_SERVICE),
        &runtime_services(),
        service.clone(),
    )
    .await;
    let serving = serving.map_err(|e| format!("cannot serve it: {e}"))?;
    mux.start();
    let limit = match shared.timeouts().registration {
        limit if violate::is("registration-never-late") => limit * 100,
        limit => limit,
    };
    let registration = tokio::select! {
        registered = registered => registered.map_err(|_| "it did not register".to_owned())?,
        why = mux.closed() => return Err(format!("before it registered: {why}")),
        () = tokio::time::sleep(limit) => return Err(format!("did not register within {limit:?}")),
        () = shared.stopped() => return Err("runtime-stopping: before it registered".to_owned()),
    };
    let registration = match registration {
        Ok(registration) => registration,
        Err(refused) => return Err(format!("registration refused: {refused}")),
    };
    let session = configure(shared, client, registration, origin).await?;
    Ok((session, serving, service))
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
    let mut settings = shared.settings.plugin(&id);
    let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
    let timeouts = shared.timeouts();
    let request_timeout = timeouts.request_of(&settings.policy);
    let request = ConfigureRequest {
        config,
        runtime_name: shared.runtime_name.clone(),
        runtime_version: shared.runtime_version.clone(),
        registration_timeout: millis(timeouts.registration),
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
    let events = match violate::is("masked-events-sent") {
        true => wanted,
        false => wanted & settings.policy.events,
    };
    settings.policy = settings.policy.declared(reply.failure_policy.as_ref());
    let link = Link {
        kind,
        pid,
        version,
        peer,
    };
    let session = Session::new(id, link, (events, reply.events == 0), settings);
    let session = Arc::new(session);
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
    let (per_chunk, total) = shared.timeouts().sync_of(&session.settings.policy);
    let (pods, containers) = (all.pods.len(), all.containers.len());
    let begun = Instant::now();
    let max = match session.peer {
        Peer::Remote { .. } => MAX_MESSAGE - ENVELOPE - SYNC_ROOM,
        Peer::InProcess(_) => usize::MAX,
    };
    let chunks = chunks::chunks(all, max);
    for object in &chunks.too_big {
        tracing::error!(plugin = %session.id, object, "exceeds the limit of a message: the plugin is not told of it");
    }
    let mut updates = Vec::new();
    let mut done = Delivery::of_sync(&session.id);
    let deadline = begun + total;
    for message in chunks.messages {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Limit::of(per_chunk.min(left));
        let asked = Instant::now();
        let reply: Result<SynchronizeResponse, _> =
            session.peer.ask("Synchronize", &message, limit).await;
        done.took = asked.elapsed();
        done.outcome = outcome_of(&reply);
        done.updates = reply.as_ref().map_or(0, |reply| reply.update.len());
        shared.count("Synchronize", &done);
        let reply = reply.map_err(|e| format!("synchronize-failed: {e}"))?;
        if violate::is("later-parts-lost") && message.more {
            // As if the rest had been sent.
            break;
        }
        if !takes_parts(&message, &reply) {
            return Err("synchronize-failed: the plugin cannot take the list in parts".to_owned());
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
        Err(CallError::Status(status)) => Outcome::Refused(status.clone()),
        Err(e @ CallError::TooLong { .. }) => {
            Outcome::Refused(Status::new(Code::ResourceExhausted, e.to_string()))
        }
    }
}

/// Takes a configured plugin through its cut, unless another thing ends it first.
async fn join(shared: &Arc<Shared>, connected: &Connected) -> Result<(), String> {
    let session = &connected.session;
    // Two instances that come at once are one after the other.
    let _alone = shared.alone(&session.id).await;
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

/// The cut; on the slot of an older instance if there is one.
async fn cut_in(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
) -> Result<(Joining, Snapshot), String> {
    if let Some(slot) = shared.seat_to_replace(session) {
        let limit = shared.timeouts().sync;
        let joined = timeout(limit, shared.roster.join_as(slot, session.clone())).await;
        let joined = joined
            .map_err(|_| "synchronize-failed: events of the older instance did not finish")?;
        if let Some(joined) = joined {
            return Ok(joined);
        }
        // The older one has gone in the meantime.
    }
    shared.join_one(session)
}

/// The plugin's events begin; the instance it replaces is closed.
pub(crate) fn activate(shared: &Shared, joining: Joining) -> Result<(), SlotGone> {
    let id = joining.slot.id.clone();
    let replaced = joining.complete()?;
    shared.tell_count();
    if let Some(old) = replaced
        && !violate::is("replaced-plugin-stays")
    {
        match old.version {
            Version::V1Beta1 => shared.close(
                &old,
                format!("instance-replaced: a newer {id} has connected"),
            ),
            // It cannot be told why, and would come back at once as the newer of the two.
            Version::V1Alpha1 => shared.shadow(old),
        }
    }
    Ok(())
}

/// The plugin that was called has gone: the newest of those in its shadow is told all there is, and is called again.
async fn promote(shared: &Arc<Shared>, id: &PluginId) {
    if !shared.has_shadow(id) {
        return;
    }
    let _alone = shared.alone(id).await;
    let taken = shared.roster.slots().iter().any(|slot| slot.id == *id);
    if taken || *shared.stopping.borrow() {
        return;
    }
    let Some(session) = shared.leave_shadow(id) else {
        return;
    };
    if let Err(reason) = join_again(shared, &session).await {
        shared.close(&session, reason);
    }
    if session.is_closing() {
        shared.roster.leave(&session);
    }
}

async fn join_again(shared: &Arc<Shared>, session: &Arc<Session>) -> Result<(), String> {
    let (joining, snapshot) = {
        let _quiet = shared.quiet().await;
        shared.join_one(session)?
    };
    let updates = synchronize(shared, session, snapshot).await?;
    session.set_shadowed(false);
    shared.apply_sync_updates(session, updates).await;
    activate(shared, joining).map_err(|e| e.to_string())
}

/// A launched plugin that has ended, and what it was launched from.
pub(crate) type Ended = Option<(Arc<Session>, Found)>;

/// A configured plugin to its end.
pub(crate) async fn join_and_watch(shared: Arc<Shared>, connected: Connected) -> Ended {
    if let Err(reason) = join(&shared, &connected).await {
        let session = &connected.session;
        shared.tell(
            &session.name(),
            &PluginEvent::Rejected {
                reason: reason.clone(),
            },
        );
        shared.close(session, reason);
    }
    watch(shared, connected).await
}

/// Waits for the end of an active plugin, and ends it.
pub(crate) async fn watch(shared: Arc<Shared>, connected: Connected) -> Ended {
    let Connected {
        session,
        mux,
        origin,
        ..
    } = connected;
    let dismissed = tokio::select! {
        reason = session.closing() => Some(reason),
        why = mux.closed() => {
            shared.close(&session, format!("connection-lost: {why}"));
            None
        }
    };
    if let Some(reason) = dismissed {
        let limit = shared.timeouts().request_of(&session.settings.policy);
        send_shutdown(&session.peer, &reason, limit).await;
    }
    mux.close(MuxError::Closed);
    let found = match origin {
        Origin::External { .. } => None,
        Origin::Launched { found, child } => {
            child.stop().await;
            Some(found)
        }
    };
    session.has_ended();
    promote(&shared, &session.id).await;
    found.map(|found| (session, found))
}

/// An in-process plugin has nothing to watch; this ends a synchronised one at shutdown.
pub(crate) async fn shutdown_in_process(session: &Session) {
    let reason = session.closing().await;
    send_shutdown(&session.peer, &reason, SHUTDOWN_LIMIT).await;
}

/// Says goodbye. The answer does not matter; v1alpha1 has no place for the reason.
async fn send_shutdown(peer: &Peer, reason: &str, limit: Duration) {
    if violate::is("closed-without-goodbye") {
        return;
    }
    let limit = Limit::of(limit.min(SHUTDOWN_LIMIT));
    let alpha = matches!(
        peer,
        Peer::Remote {
            version: Version::V1Alpha1,
            ..
        }
    );
    let reason = match violate::is("shutdown-without-reason") {
        true => String::new(),
        false => reason.to_owned(),
    };
    let _: Result<Empty, _> = if alpha {
        peer.ask("Shutdown", &Empty {}, limit).await
    } else {
        peer.ask("Shutdown", &ShutdownRequest { reason }, limit)
            .await
    };
}
