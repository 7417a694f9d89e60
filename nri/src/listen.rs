//! Plugins that connect to the socket: accepting, permission and rate.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::UnixStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    establish::{self, Origin},
    join, limits,
    observe::{Kind, PluginEvent, PluginName},
    pace::{CONNECTIONS_PER_SECOND, Pace},
    peer_identity::{Identity, pid_of},
    rt,
    shared::Shared,
    wire::{mux::Socket, transport::Listener},
};

/// Pause after a connection above the rate.
const FLOOD_PAUSE: Duration = Duration::from_millis(1);

/// Unregistered connections of one user.
struct Unregistered {
    most: usize,
    left: Arc<Semaphore>,
}

impl Unregistered {
    fn new(most: usize) -> Self {
        Self {
            most,
            left: Arc::new(Semaphore::new(most)),
        }
    }
}

#[cfg(feature = "sim")]
impl crate::Adaptation {
    /// Connects a plugin.
    pub fn connect(&self, socket: nri_sim::Memory) {
        let shared: &Arc<Shared> = &self.shared;
        let shared = shared.clone();
        shared.welcome(socket, Arc::new(Identity::unknown()), None);
    }
}

impl Shared {
    /// Accepts connections until shutdown; no error ends it (NRI-104).
    pub(crate) async fn accept(self: Arc<Self>, listener: Listener) {
        let users: BTreeSet<u32> = self.settings.allowed_uids.iter().copied().collect();
        let most = limits::unregistered_of_one(users.len());
        let unregistered = users.iter().map(|uid| (*uid, Unregistered::new(most)));
        let unregistered = unregistered.collect::<HashMap<_, _>>();
        let mut pause = Duration::from_millis(100);
        let (pace, reports) = (Pace::of_connections(), Pace::of_reports());
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.stopped() => return,
                accepted = listener.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    pause = Duration::from_millis(100);
                    let pid = stream.peer_cred().ok().and_then(|cred| pid_of(&cred));
                    // A process that connects in a loop keeps no other process out.
                    if pace.try_take(&pid) {
                        self.clone().admit(stream, &unregistered);
                    } else {
                        if reports.try_take(&pid) {
                            self.is_too_fast(pid);
                        }
                        // A flood costs the pods little time; a full queue (4096) takes 4 s.
                        sleep(FLOOD_PAUSE).await;
                    }
                }
                Err(e) => {
                    tracing::warn!("NRI socket: accept: {e}; trying again in {pause:?}");
                    sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    fn is_too_fast(&self, pid: Option<u32>) {
        let name = PluginName {
            pid,
            ..PluginName::unknown(Kind::External)
        };
        let whose = pid.map_or_else(
            || "processes in PID namespaces of others".to_owned(),
            |pid| format!("process {pid}"),
        );
        let reason =
            format!("more than {CONNECTIONS_PER_SECOND} connections per second of {whose}");
        self.notices
            .report(&name, &PluginEvent::Rejected { reason });
    }

    fn admit(self: Arc<Self>, stream: UnixStream, unregistered: &HashMap<u32, Unregistered>) {
        let identity = Identity::of(&stream);
        let name = PluginName {
            pid: identity.as_ref().ok().and_then(|identity| identity.pid),
            ..PluginName::unknown(Kind::External)
        };
        let reject = |reason: String| {
            self.notices
                .report(&name, &PluginEvent::Rejected { reason })
        };
        let identity = match identity {
            Ok(known) => Arc::new(known),
            Err(e) => return reject(format!("cannot identify the peer: {e}")),
        };
        let Some(own) = unregistered.get(&identity.uid) else {
            return reject(format!("user {} may not connect", identity.uid));
        };
        let Ok(permit) = own.left.clone().try_acquire_owned() else {
            return reject(format!(
                "{} connections of user {} have not registered yet",
                own.most, identity.uid
            ));
        };
        self.welcome(stream, identity, Some(permit));
    }

    /// Serves a connection until it ends. The permit is one of the unregistered connections.
    pub(crate) fn welcome(
        self: Arc<Self>,
        socket: impl Into<Socket>,
        identity: Arc<Identity>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> JoinHandle<()> {
        let (shared, socket) = (self, socket.into());
        rt::spawn(async move {
            let origin = Origin::External(identity);
            let connected = establish::establish(&shared, socket, origin).await;
            drop(permit);
            if let Some(connected) = connected {
                join::join_and_watch(shared, connected).await;
            }
        })
    }
}
