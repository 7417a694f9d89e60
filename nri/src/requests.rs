//! Requests of plugins: RegisterPlugin, and unsolicited UpdateContainers.
//!
//! Unsolicited updates take no turn and wait for no pod (see NRI-562): they go to
//! [`Source::update`](crate::Source::update) at once, and `failed` lists those that cannot be
//! applied (NRI-441). A plugin can send them from inside a handler without a deadlock.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use prost::Message;
use proto_nri::{
    ContainerUpdate, RegisterPluginRequest, UpdateContainersRequest, UpdateContainersResponse,
};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use crate::{
    limits::Permit,
    observe::{Kind, PluginEvent},
    operation, pace,
    peer_identity::Identity,
    plugin_id::PluginId,
    shared::Shared,
    source::{FailedUpdate, NOT_PERMITTED, Requester},
    wire::rpc::{Code, Incoming, Serve, Status, one_line},
};

/// Contents of a registration.
#[derive(Debug, Clone)]
pub struct Registration {
    pub id: PluginId,
    pub nri_version: String,
}

type Answer = Result<Registration, Status>;

/// Origin of a connection.
pub enum Who {
    /// Its own registration is ignored.
    Launched(PluginId),
    External(Arc<Identity>),
}

/// The runtime service of one connection.
pub struct RuntimeService {
    shared: Arc<Shared>,
    who: Who,
    registering: Mutex<Option<oneshot::Sender<Answer>>>,
    registered: OnceLock<Registration>,
    /// Taken at registration, for the task that watches the connection.
    permit: Mutex<Option<Permit>>,
    /// Set once the plugin is synchronised: whether it is in the shadow of a newer instance.
    open: OnceLock<Arc<AtomicBool>>,
    /// Locked by the call whose updates are being applied.
    updating: AsyncMutex<()>,
}

impl RuntimeService {
    pub(crate) fn new(shared: Arc<Shared>, who: Who) -> (Self, oneshot::Receiver<Answer>) {
        let (tx, rx) = oneshot::channel();
        let service = Self {
            shared,
            who,
            registering: Mutex::new(Some(tx)),
            registered: OnceLock::new(),
            permit: Mutex::default(),
            open: OnceLock::new(),
            updating: AsyncMutex::default(),
        };
        (service, rx)
    }

    /// Allows the plugin to request updates (NRI-560).
    pub fn open(&self, shadowed: Arc<AtomicBool>) {
        let _ = self.open.set(shadowed);
    }

    /// The plugin's place from its registration; a launched one has none.
    pub(crate) fn take_permit(&self) -> Option<Permit> {
        self.permit.lock().take()
    }

    pub async fn register(&self, payload: &[u8]) -> Result<Vec<u8>, Status> {
        let registering = self.registering.lock().take();
        let Some(registering) = registering else {
            let text = "this connection has already registered a plugin";
            return Err(Status::new(Code::FailedPrecondition, text));
        };
        let answer = self.answer(payload).await;
        if let Ok(registration) = &answer {
            let _ = self.registered.set(registration.clone());
        }
        let reply = answer.clone().map(|_| Vec::new());
        // No receiver: the connection is being closed, and the reply does not matter.
        let _ = registering.send(answer);
        reply
    }

    async fn answer(&self, payload: &[u8]) -> Answer {
        let bad = |text: String| Status::new(Code::InvalidArgument, one_line(&text));
        let request = RegisterPluginRequest::decode(payload).map_err(|e| bad(e.to_string()))?;
        let id = match &self.who {
            Who::Launched(id) => id.clone(),
            Who::External(identity) => {
                let id = PluginId::new(request.plugin_idx, request.plugin_name);
                let id = id.map_err(|e| bad(e.to_string()))?;
                self.admit(&id, identity).await?;
                id
            }
        };
        Ok(Registration {
            id,
            nri_version: one_line(&request.nri_version),
        })
    }

    /// Checks whether the peer may use this id.
    async fn admit(&self, id: &PluginId, identity: &Arc<Identity>) -> Result<(), Status> {
        let Shared {
            settings,
            admission,
            ..
        } = &*self.shared;
        let taken = |by: &str| Err(Status::new(Code::AlreadyExists, format!("{id} is {by}")));
        match self.shared.seats.reserved_for(id) {
            Some(Kind::InProcess) => return taken("an in-process plugin of the runtime"),
            Some(_) => return taken("a plugin that the runtime launches"),
            None => {}
        }
        let denied = |why: String| Status::new(Code::PermissionDenied, one_line(&why));
        let rule = settings.plugin(id).peer;
        let verified = identity.verify(&rule, &admission.lookups).await;
        verified.map_err(|why| denied(format!("not {id}: {why}")))?;
        let named = settings.plugins.contains_key(id);
        let permit = admission.limits.take(id, identity.uid, named);
        let permit = permit.map_err(|why| Status::new(Code::ResourceExhausted, why))?;
        *self.permit.lock() = Some(permit);
        Ok(())
    }

    pub async fn update(&self, payload: &[u8]) -> Result<Vec<u8>, Status> {
        let (Some(Registration { id: who, .. }), Some(shadowed)) =
            (self.registered.get(), self.open.get())
        else {
            let text = "the plugin is not synchronised";
            return Err(Status::new(Code::FailedPrecondition, text));
        };
        if shadowed.load(Ordering::SeqCst) {
            let text = format!("a newer instance of {who} has taken its place");
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        let request = UpdateContainersRequest::decode(payload)
            .map_err(|e| Status::new(Code::InvalidArgument, e.to_string()))?;
        let _turn = self.updating.lock().await;
        let failed = self.shared.unsolicited(who, request).await;
        Ok(UpdateContainersResponse { failed }.encode_to_vec())
    }
}

impl Shared {
    /// Applies updates and evictions that a plugin sends on its own initiative (NRI-440, NRI-441,
    /// NRI-570). Returns the failed ones.
    pub(crate) async fn unsolicited(
        &self,
        plugin: &PluginId,
        request: UpdateContainersRequest,
    ) -> Vec<ContainerUpdate> {
        let policy = self.settings.plugin(plugin).policy;
        let by = Requester::one("UpdateContainers", plugin);
        let mut failed = Vec::new();
        let mut updates = 0;
        let evictions = request.evict.len();
        if request.update.is_empty() && evictions == 0 {
            self.admission.pace.take(plugin, 1).await;
        }
        let mut asked = request.update.into_iter();
        loop {
            let part: Vec<_> = asked.by_ref().take(pace::PART).collect();
            if part.is_empty() {
                break;
            }
            self.admission.pace.take(plugin, part.len()).await;
            let (granted, denied) = operation::permitted_updates(plugin, &policy, part);
            let (creating, ready): (Vec<_>, Vec<_>) = granted
                .into_iter()
                .partition(|u| self.roster.is_being_created(&u.container_id));
            let denied = denied.into_iter();
            let denied = denied.map(|update| FailedUpdate::new(update, NOT_PERMITTED));
            let creating = creating.into_iter();
            let creating = creating.map(|update| FailedUpdate::new(update, "being created"));
            let rejected: Vec<_> = denied.chain(creating).collect();
            self.notices.rejected(&by, &rejected);
            failed.extend(rejected);
            updates += ready.len();
            if !ready.is_empty() {
                let not_applied = self.source.update(&by, ready).await;
                not_applied
                    .iter()
                    .for_each(|failed| self.notices.update_failed(&by, failed));
                failed.extend(not_applied);
            }
        }
        let mut not_evicted = Vec::new();
        for eviction in request.evict {
            self.admission.pace.take(plugin, 1).await;
            let container = eviction.container_id;
            let done = if policy.fields.may_evict() {
                let reason = one_line(&eviction.reason);
                self.source.evict(plugin, container.clone(), reason).await
            } else {
                Err("it may not evict".to_owned())
            };
            if let Err(why) = done {
                // The protocol reports a failed eviction only as an update without values.
                not_evicted.push(ContainerUpdate {
                    container_id: container.clone(),
                    ..ContainerUpdate::default()
                });
                let container = one_line(&container);
                let why = format!("eviction of container {container} failed: {why}");
                self.notices.request_failed(plugin, &why);
                self.notices
                    .report_of(plugin, &PluginEvent::RequestFailed { container, why });
            }
        }
        let event = PluginEvent::Unsolicited {
            updates,
            failed: failed.len(),
            evictions,
        };
        self.notices.report_of(plugin, &event);
        let failed = failed.into_iter().map(|failed| failed.update);
        failed.chain(not_evicted).collect()
    }
}

#[async_trait::async_trait]
impl Serve for RuntimeService {
    async fn answer(&self, call: Incoming) -> Result<Vec<u8>, Status> {
        match call.method {
            "RegisterPlugin" => self.register(&call.payload).await,
            _ => self.update(&call.payload).await,
        }
    }
}
