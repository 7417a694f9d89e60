//! Starts the pre-installed plugins, in-process and from the plugin directory, adds all of them in
//! one cut, and restarts those that end.

use std::{sync::Arc, time::Duration};

use tokio::{
    net::UnixStream,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    establish::{self, Connected, Origin},
    join::{self, Ended, SYNCHRONIZE},
    merge::StopMerge,
    observe::{Kind, PluginEvent, PluginName},
    plugin::Session,
    plugin_id::PluginId,
    plugin_side::handlers::Handlers,
    roster::Joining,
    rt,
    settings::Restart,
    shared::Shared,
    source::Requester,
    wire::{
        discover::{self, Found},
        error::TransportError,
        process,
    },
};

/// Back-off of restarts.
const RESTART_FIRST: Duration = Duration::from_secs(1);
const RESTART_MAX: Duration = Duration::from_secs(60);
/// Limit of the wait for launched plugins to register at start.
const LAUNCH_WAIT: Duration = Duration::from_secs(5);

/// Error of starting NRI.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("in-process plugin {id}: {cause}")]
    InProcess { id: PluginId, cause: String },
    #[error("no source given: plugins cannot be synchronized")]
    NoSource,
    #[error("the runtime's name and version are required: plugins receive them")]
    NoName,
}

impl Shared {
    /// Configures the plugins of this process; one that fails fails the start (NRI-207).
    pub(crate) async fn start_in_process(
        self: Arc<Self>,
        plugins: Vec<(PluginId, Handlers)>,
    ) -> Result<Vec<Arc<Session>>, StartError> {
        let mut sessions = Vec::new();
        for (id, handlers) in plugins {
            self.seats.reserve(&id, Kind::InProcess);
            let session = establish::establish_in_process(&self, id.clone(), handlers).await;
            sessions.push(session.map_err(|cause| StartError::InProcess { id, cause })?);
        }
        Ok(sessions)
    }

    /// Starts the plugins of the plugin directory, in order (NRI-206). Returns the registered ones
    /// when all have registered or the time is over; late ones join like a plugin that connects.
    pub(crate) async fn launch_all(self: Arc<Self>) -> Result<Vec<Connected>, StartError> {
        let Some(dir) = &self.settings.plugin_dir else {
            return Ok(Vec::new());
        };
        let config_dir = self.settings.plugin_config_dir.as_deref();
        let trusted = self.settings.trusted_files_only;
        let wasm_host = self.settings.wasm_host.as_deref();
        let (found, left_out) = discover::discover(dir, config_dir, wasm_host, trusted)?;
        for left in left_out {
            let reason = format!("{}: {}", left.file.display(), left.why);
            self.notices.report(
                &PluginName::unknown(Kind::Launched),
                &PluginEvent::Rejected { reason },
            );
        }
        let mut starting = Vec::new();
        for plugin in found {
            self.seats.reserve(&plugin.id, Kind::Launched);
            let again = plugin.clone();
            let Some((stream, origin)) = self.launch(plugin) else {
                continue;
            };
            let shared = self.clone();
            let established = async move { establish::establish(&shared, stream, origin).await };
            starting.push((rt::spawn(established), again));
        }
        let deadline = Instant::now() + LAUNCH_WAIT;
        let mut connected = Vec::new();
        for (mut established, found) in starting {
            match timeout_at(deadline, &mut established).await {
                Ok(Ok(Some(plugin))) => connected.push(plugin),
                Ok(_) => self.clone().launch_failed(found),
                Err(_) => {
                    tracing::warn!(plugin = %found.id, "has not registered within {LAUNCH_WAIT:?}: the start goes on without it");
                    let shared = self.clone();
                    rt::spawn(async move {
                        match established.await {
                            Ok(Some(plugin)) => shared.live(plugin).await,
                            _ => shared.launch_failed(found),
                        }
                    });
                }
            }
        }
        Ok(connected)
    }

    fn launch_failed(self: Arc<Self>, found: Found) {
        if self.settings.plugin(&found.id).restart == Restart::OnFailure {
            self.launch_later(found, Duration::ZERO);
        }
    }

    /// Serves a launched plugin that was absent at the start, until it ends.
    async fn live(self: Arc<Self>, connected: Connected) {
        let ended = join::join_and_watch(self.clone(), connected).await;
        self.restart(ended);
    }

    fn launch(&self, found: Found) -> Option<(UnixStream, Origin)> {
        let mut name = PluginName::unknown(Kind::Launched);
        name.id = Some(&found.id);
        match process::launch(&found) {
            Ok((child, stream)) => {
                name.pid = Some(child.pid);
                if let Some(started) = self.settings.started {
                    started(child.pid);
                }
                self.notices.report(&name, &PluginEvent::Launched);
                Some((stream, Origin::Launched { found, child }))
            }
            Err(e) => {
                let reason = e.to_string();
                if let Some(id) = name.id {
                    self.remember_failed(id, Kind::Launched, None, &reason);
                }
                self.notices
                    .report(&name, &PluginEvent::Rejected { reason });
                None
            }
        }
    }

    /// One cut for all pre-installed plugins, then synchronises each in order (NRI-208, NRI-315).
    pub(crate) async fn join_preinstalled(
        self: Arc<Self>,
        in_process: Vec<Arc<Session>>,
        launched: Vec<Connected>,
    ) {
        let mut sessions = in_process;
        sessions.extend(launched.iter().map(|c| c.session.clone()));
        self.roster.adopt();
        let (joining, snapshot) = self.roster.join(&sessions);
        // As at a stop, the first update wins (NRI-317).
        let mut merge = StopMerge::new();
        let mut ready: Vec<Joining> = Vec::new();
        for (session, joining) in sessions.iter().zip(joining) {
            match join::synchronize(&self, session, snapshot.clone()).await {
                Ok(updates) => {
                    let updates = join::granted(&self, session, updates);
                    for conflict in merge.apply(&session.id, updates) {
                        tracing::warn!(plugin = %session.id, %conflict, "update skipped at start-up");
                    }
                    ready.push(joining);
                }
                Err(reason) => self.reject(session, reason),
            }
        }
        let merged = merge.finish();
        for session in &sessions {
            let shares = merged.update.iter();
            let shares = shares.flat_map(|update| merged.askers.shares(&update.container_id));
            let own = shares.filter(|share| share.plugin == session.id);
            let own = own.map(|share| share.update.clone()).collect();
            join::apply(&self, &Requester::one(SYNCHRONIZE, &session.id), own).await;
        }
        for connected in &launched {
            connected.open();
        }
        for joining in ready {
            if let Err(e) = join::activate(&self, joining) {
                tracing::warn!("at start-up: {e}");
            }
        }
        for connected in launched {
            rt::spawn(self.clone().watch_launched(connected));
        }
    }

    async fn watch_launched(self: Arc<Self>, connected: Connected) {
        let ended = join::watch(self.clone(), connected).await;
        self.restart(ended);
    }

    /// Restarts a launched plugin if its settings demand it.
    fn restart(self: Arc<Self>, ended: Ended) {
        let Some((session, found)) = ended else {
            return;
        };
        if session.was_dismissed()
            || session.settings.restart == Restart::No
            || *self.stopping.borrow()
        {
            return;
        }
        self.launch_later(found, session.age());
    }

    /// Starts it again after its back-off, and reports that. `lived` is the length of its last run.
    fn launch_later(self: Arc<Self>, found: Found, lived: Duration) {
        let after = self.next_restart(&found.id, lived);
        let mut name = PluginName::unknown(Kind::Launched);
        name.id = Some(&found.id);
        self.notices
            .report(&name, &PluginEvent::Restarting { after });
        rt::spawn(self.launch_again(found, after));
    }

    /// A boxed future, because the end of a plugin recurses into its next run.
    fn launch_again(
        self: Arc<Self>,
        found: Found,
        after: Duration,
    ) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = self.stopped() => return,
                () = sleep(after) => {}
            }
            let again = found.clone();
            let Some((stream, origin)) = self.launch(found) else {
                return;
            };
            match establish::establish(&self, stream, origin).await {
                Some(connected) => self.live(connected).await,
                None => self.launch_failed(again),
            }
        })
    }

    /// 1 s, 2 s, … up to a minute; reset after a run of a minute.
    fn next_restart(&self, id: &PluginId, lived: Duration) -> Duration {
        let mut restarts = self.restarts.lock();
        let count = restarts.entry(id.clone()).or_default();
        if lived >= RESTART_MAX {
            *count = 0;
        }
        let after = RESTART_FIRST * 2u32.pow((*count).min(6));
        *count += 1;
        after.min(RESTART_MAX)
    }
}
