//! Registers and configures the plugin of a connection, or reports the failure.

use std::{sync::Arc, time::Duration};

use proto_nri::{ConfigureRequest, ConfigureResponse};

use crate::{
    closing::CloseReason,
    limits::Permit,
    mask::EventMask,
    observe::{Kind, PluginEvent, PluginName},
    peer::Peer,
    peer_identity::Identity,
    plugin::{Link, Session},
    plugin_id::PluginId,
    plugin_side::{handlers::Handlers, service::PluginService},
    requests::{Registration, RuntimeService, Who},
    shared::Shared,
    wire::{
        discover::Found,
        mux::{Mux, MuxError, PLUGIN_SERVICE, RUNTIME_SERVICE, Socket},
        process::Child,
        rpc::{Client, Serving, one_line, serve},
        version::{NRI_VERSION, PLUGIN_API, RUNTIME_API, RUNTIME_METHODS},
    },
};

/// Time for an error reply to reach the plugin before the connection closes (NRI-1060).
const DELAYED_CLOSE: Duration = Duration::from_millis(250);

/// Origin of a connection.
pub(crate) enum Origin {
    External(Arc<Identity>),
    Launched { found: Found, child: Child },
}

impl Origin {
    fn name(&self) -> PluginName<'_> {
        let (id, kind, pid) = match self {
            Self::External(identity) => (None, Kind::External, identity.pid),
            Self::Launched { found, child } => (Some(&found.id), Kind::Launched, Some(child.pid)),
        };
        PluginName { id, kind, pid }
    }
}

/// A configured plugin with everything it owns.
pub(crate) struct Connected {
    pub(crate) session: Arc<Session>,
    pub(crate) mux: Mux,
    pub(crate) serving: Serving,
    service: Arc<RuntimeService>,
    pub(crate) permit: Option<Permit>,
    pub(crate) origin: Origin,
}

impl Connected {
    /// Allows the plugin to request updates.
    pub(crate) fn open(&self) {
        self.service.open(self.session.shadowed());
    }
}

/// Registers and configures a plugin. A failure leaves nothing behind and is reported to the
/// observer.
pub(crate) async fn establish(
    shared: &Arc<Shared>,
    socket: impl Into<Socket>,
    origin: Origin,
) -> Option<Connected> {
    let watch = shared.runtime.watches.as_ref().map(|watches| watches());
    let mux = Mux::watched(socket, shared.timeouts().request, watch);
    let mut known = None;
    match introduce(shared, &mux, &origin, &mut known).await {
        Ok((session, serving, service, permit)) => Some(Connected {
            session,
            mux,
            serving,
            service,
            permit,
            origin,
        }),
        Err(mut reason) => {
            if let Origin::Launched { found, child } = &origin {
                // Only a plugin that closed its connection may be about to end.
                let is_closed = tokio::select! {
                    biased;
                    _ = mux.closed() => true,
                    () = std::future::ready(()) => false,
                };
                if is_closed && let Some(ended) = child.ended().await {
                    reason = format!("{reason}; {ended}");
                }
                let pid = Some(child.pid);
                shared.remember_failed(&found.id, Kind::Launched, pid, &reason);
            }
            let mut name = origin.name();
            name.id = name.id.or(known.as_ref());
            shared
                .notices
                .report(&name, &PluginEvent::Rejected { reason });
            // The plugin must get the reason before the connection closes; a shutdown does not wait
            // for that.
            tokio::select! {
                biased;
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
    known: &mut Option<PluginId>,
) -> Result<(Arc<Session>, Serving, Arc<RuntimeService>, Option<Permit>), String> {
    let client = Client::new(mux.open(PLUGIN_SERVICE), PLUGIN_API);
    let who = match origin {
        Origin::External(identity) => Who::External(identity.clone()),
        Origin::Launched { found, .. } => Who::Launched(found.id.clone()),
    };
    let (service, registered) = RuntimeService::new(shared.clone(), who);
    let service = Arc::new(service);
    let serving = serve(
        mux.open_for_replies(RUNTIME_SERVICE),
        RUNTIME_API,
        &RUNTIME_METHODS,
        service.clone(),
    )
    .await;
    let serving = serving.map_err(|e| format!("cannot serve it: {e}"))?;
    mux.start();
    let limit = shared.timeouts().registration;
    let registration = tokio::select! {
        biased;
        registered = registered => registered.map_err(|_| "it did not register".to_owned())?,
        why = mux.closed() => return Err(format!("before it registered: {why}")),
        () = tokio::time::sleep(limit) => return Err(format!("did not register within {limit:?}")),
        () = shared.stopped() => {
            let why = CloseReason::RuntimeStopping.because("before it registered");
            return Err(why.to_string());
        }
    };
    let registration = match registration {
        Ok(registration) => registration,
        Err(refused) => {
            return Err(format!(
                "registration refused: {}",
                one_line(&refused.message)
            ));
        }
    };
    *known = Some(registration.id.clone());
    let permit = service.take_permit();
    let session = configure(shared, client, registration, origin).await?;
    Ok((session, serving, service, permit))
}

async fn configure(
    shared: &Arc<Shared>,
    client: Client,
    registration: Registration,
    origin: &Origin,
) -> Result<Arc<Session>, String> {
    let Registration { id, nri_version } = registration;
    let name = PluginName {
        id: Some(&id),
        ..origin.name()
    };
    shared
        .notices
        .report(&name, &PluginEvent::Registered { nri_version });
    let config = match origin {
        Origin::Launched { found, .. } => found.config.clone(),
        Origin::External(_) => String::new(),
    };
    let link = Link {
        kind: name.kind,
        pid: name.pid,
        peer: Peer::Remote(client),
    };
    let (kind, pid) = (link.kind, link.pid);
    let session = new_session(shared, id.clone(), link, config).await;
    session.inspect_err(|reason| shared.remember_failed(&id, kind, pid, reason))
}

/// Sends Configure and creates a session from the answer.
async fn new_session(
    shared: &Arc<Shared>,
    id: PluginId,
    link: Link,
    config: String,
) -> Result<Arc<Session>, String> {
    let mut settings = match link.kind {
        Kind::InProcess => shared
            .settings
            .plugins
            .get(&id)
            .cloned()
            .unwrap_or_default(),
        Kind::Launched | Kind::External => shared.settings.plugin(&id),
    };
    let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
    let timeouts = shared.timeouts();
    let limit = timeouts.request_of(&settings.policy);
    let request = ConfigureRequest {
        config,
        runtime_name: shared.runtime.name.clone(),
        runtime_version: shared.runtime.version.clone(),
        registration_timeout: millis(timeouts.registration),
        request_timeout: millis(limit),
        nri_version: NRI_VERSION.to_owned(),
    };
    let reply: ConfigureResponse = link
        .peer
        .ask("Configure", &request, limit)
        .await
        .map_err(|e| format!("configure {id}: {e}"))?;
    let allowed = settings.policy.events;
    let wanted = EventMask::from_wire(reply.events).map_err(|e| e.to_string());
    let wanted = wanted.and_then(|wanted| settings.policy.check_events(wanted & allowed));
    let events = match wanted {
        Ok(events) => events,
        Err(e) => {
            link.peer.shutdown(limit).await;
            return Err(format!("configure {id}: {e}"));
        }
    };
    settings.policy = settings.policy.declared(reply.failure_policy.as_ref());
    let session = Session::new(id, link, events, reply.events == 0, settings);
    let session = Arc::new(session);
    shared
        .notices
        .report(&session.name(), &PluginEvent::Configured { events });
    Ok(session)
}

/// Configures a plugin of this process.
pub(crate) async fn establish_in_process(
    shared: &Arc<Shared>,
    id: PluginId,
    handlers: Handlers,
) -> Result<Arc<Session>, String> {
    let link = Link {
        kind: Kind::InProcess,
        pid: None,
        peer: Peer::InProcess(Arc::new(PluginService::in_process(handlers))),
    };
    new_session(shared, id, link, String::new()).await
}
