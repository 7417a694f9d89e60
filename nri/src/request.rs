//! What plugins ask of the runtime: to be registered, and to update containers of their own accord.
//!
//! Unsolicited updates take no turn and wait for no pod (design rule 4, instead of NRI-562): they go
//! to [`Source::update`](crate::Source::update) at once, and what cannot be applied is named in
//! `failed` (NRI-441). A plugin may ask from inside a handler without hanging.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use prost::Message;
use proto_nri::{RegisterPluginRequest, UpdateContainersRequest, UpdateContainersResponse};
use tokio::sync::oneshot;

use crate::{
    Shared,
    owners::PluginId,
    rpc::{Code, Incoming, Serve, Status, one_line},
    version::Version,
};

/// What a plugin said when it registered.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) id: PluginId,
    pub(crate) version: Version,
    pub(crate) nri_version: String,
}

type Answer = Result<Registration, Status>;

/// The runtime service of one connection.
pub(crate) struct Door {
    shared: Arc<Shared>,
    /// Who a launched plugin is; what it says about itself does not count.
    fixed: Option<PluginId>,
    registering: Mutex<Option<oneshot::Sender<Answer>>>,
    registered: OnceLock<Version>,
    who: OnceLock<PluginId>,
    /// The plugin is synchronised.
    open: AtomicBool,
}

impl Door {
    pub(crate) fn new(
        shared: Arc<Shared>,
        fixed: Option<PluginId>,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let (tx, rx) = oneshot::channel();
        let door = Self {
            shared,
            fixed,
            registering: Mutex::new(Some(tx)),
            registered: OnceLock::new(),
            who: OnceLock::new(),
            open: AtomicBool::new(false),
        };
        (door, rx)
    }

    /// The plugin may ask for updates from now on (NRI-560).
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    pub(crate) fn register(&self, version: Version, payload: &[u8]) -> Result<Vec<u8>, Status> {
        let registering = self
            .registering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(registering) = registering else {
            let text = "this connection has registered its plugin already";
            return Err(Status::new(Code::FailedPrecondition, text));
        };
        let answer = self.judge(version, payload);
        if let Ok(registration) = &answer {
            let _ = self.registered.set(version);
            let _ = self.who.set(registration.id.clone());
        }
        let reply = answer.clone().map(|_| Vec::new());
        // Nobody there: the connection is being closed, and the reply will not matter.
        let _ = registering.send(answer);
        reply
    }

    fn judge(&self, version: Version, payload: &[u8]) -> Answer {
        let bad = |text: String| Status::new(Code::InvalidArgument, one_line(&text));
        let request = RegisterPluginRequest::decode(payload).map_err(|e| bad(e.to_string()))?;
        let id = match &self.fixed {
            Some(id) => id.clone(),
            None => {
                let id = PluginId::new(request.plugin_idx, request.plugin_name);
                let id = id.map_err(|e| bad(e.to_string()))?;
                if self.shared.is_in_process(&id) {
                    let text = format!("{id} is a plugin of the runtime itself");
                    return Err(Status::new(Code::AlreadyExists, text));
                }
                id
            }
        };
        Ok(Registration {
            id,
            version,
            nri_version: one_line(&request.nri_version),
        })
    }

    pub(crate) async fn update(&self, version: Version, payload: &[u8]) -> Result<Vec<u8>, Status> {
        let who = self
            .who
            .get()
            .filter(|_| self.registered.get() == Some(&version));
        let (Some(who), true) = (who, self.open.load(Ordering::SeqCst)) else {
            let text = "the plugin is not synchronised, or registered for another version";
            return Err(Status::new(Code::FailedPrecondition, text));
        };
        let request = UpdateContainersRequest::decode(payload)
            .map_err(|e| Status::new(Code::InvalidArgument, e.to_string()))?;
        let failed = self.shared.unsolicited(who, request).await;
        Ok(UpdateContainersResponse { failed }.encode_to_vec())
    }
}

#[async_trait::async_trait]
impl Serve for Door {
    async fn answer(&self, call: Incoming) -> Result<Vec<u8>, Status> {
        let version = Version::of_runtime_service(call.service);
        match call.method {
            "RegisterPlugin" => self.register(version, &call.payload),
            _ => self.update(version, &call.payload).await,
        }
    }
}
