//! A pod and a container in memory, shared by the pod's driver, its steps, and readers.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use prost13::Message as _;
use tokio::{
    sync::{
        mpsc::{self, error::SendError},
        watch,
    },
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    error::{Error, Kind, Result},
    grace::Grace,
    op::{Asker, Op, Reply, Request},
    record::{ContainerPhase, ContainerRecord, Mark, Namespaces, PodPhase, PodRecord},
    resources_turn::ResourcesTurn,
    skips::Skips,
};
use crate::{monitor::Monitor, store::Cell};

/// Capacity of a pod's queue; further senders wait.
const QUEUE: usize = 64;
/// Time that a stop or removal leaves to a look-up of paths.
pub const LOOKUP: Duration = Duration::from_secs(1);
/// Time from the begin of a start that a stop or removal leaves to its mounts, OCI hooks and
/// plugins; and from the begin of their run to poststop hooks.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Time in which recovery finds a monitor that answers (`recover_container.rs`).
const REATTACHED: Duration = Duration::from_secs(10);

/// One pod: shared by its driver, its steps, and readers.
pub struct Pod {
    pub id: String,
    pub cell: Cell<PodRecord>,
    containers: RwLock<BTreeMap<String, Arc<Container>>>,
    queue: mpsc::Sender<Request>,
    /// A client has used its id: a later request for its creation is another one (CRI-113).
    known: AtomicBool,
    /// Failures that a forced removal skips.
    pub skips: Skips,
}

/// One container: shared by its pod's driver, its steps, and readers.
pub struct Container {
    pub id: String,
    pub cell: Cell<ContainerRecord>,
    /// The connection to its monitor, from start to removal.
    monitor: watch::Sender<Option<Monitor>>,
    /// The deadline of a running stop.
    pub grace: Grace,
    pub resources: ResourcesTurn,
    /// True once an exit is recorded and plugins are notified (`container_exit.rs`).
    exit_reported: watch::Sender<bool>,
    /// As in [`Pod`].
    known: AtomicBool,
    /// The stop of its eviction is queued or runs.
    pub evicting: AtomicBool,
    /// The spec's part of its NRI message, encoded (a third of the size); only with NRI on.
    message: Mutex<Option<Box<[u8]>>>,
    /// Failures that a forced removal of this container alone skips.
    pub skips: Skips,
    /// Its stop or removal was requested: look-ups of paths end (`host/lookup.rs`).
    pub ending: CancellationToken,
    /// One of its processes outlived SIGKILL: nothing waits for its cgroup again.
    pub unkillable: AtomicBool,
}

impl Pod {
    pub fn new(cell: Cell<PodRecord>) -> (Arc<Self>, mpsc::Receiver<Request>) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let pod = Arc::new(Self {
            id: cell.get().id.clone(),
            cell,
            containers: RwLock::default(),
            queue,
            known: AtomicBool::new(false),
            skips: Skips::default(),
        });
        (pod, receiver)
    }

    /// True when a stop has completed: everything is released and the hook was sent.
    pub fn stopped(&self) -> bool {
        let record = self.cell.get();
        record.phase == PodPhase::NotReady
            && record.hooks.stop == Mark::Done
            && record.failed_step.is_none()
            && record.namespaces == Namespaces::default()
            && !record.network_begun
    }

    /// Opens the pinned user namespace, if the pod has one.
    ///
    /// # Errors
    /// When the pin cannot be opened.
    #[expect(
        clippy::disallowed_methods,
        reason = "our own state directory, which is in memory"
    )]
    pub fn user_namespace(&self) -> std::io::Result<Option<Arc<OwnedFd>>> {
        let pinned = self.cell.get().namespaces.user.clone();
        let file = pinned.map(std::fs::File::open).transpose()?;
        Ok(file.map(|file| Arc::new(file.into())))
    }

    pub fn container(&self, id: &str) -> Option<Arc<Container>> {
        self.containers.read().get(id).cloned()
    }

    /// By `name_attempt`.
    pub fn container_named(&self, key: &str) -> Option<Arc<Container>> {
        self.containers
            .read()
            .values()
            .find(|container| container.cell.get().name_key() == key)
            .cloned()
    }

    /// All containers, including those still being created.
    pub fn containers(&self) -> Vec<Arc<Container>> {
        self.containers.read().values().cloned().collect()
    }

    /// The containers that clients see, as of now, oldest first.
    pub fn visible_containers(&self) -> Vec<Arc<ContainerRecord>> {
        let mut records: Vec<_> = self
            .containers()
            .iter()
            .map(|container| container.cell.get())
            .filter(|record| record.phase != ContainerPhase::Creating)
            .collect();
        records.sort_by_key(|record| record.created_at);
        records
    }

    pub fn insert(&self, container: Arc<Container>) {
        let id = container.id.clone();
        self.containers.write().insert(id, container);
    }

    pub fn forget(&self, id: &str) {
        self.containers.write().remove(id);
    }

    /// Queues an operation on the pod and waits for its end. Dropping the future abandons the
    /// answer, not the work (CRI-008). Returns the id of the pod, or of the created container.
    ///
    /// # Errors
    /// The error of the operation, or [`Kind::Unavailable`] when the daemon is shutting down. A
    /// client's request is also refused where too many wait.
    pub async fn ask(&self, by: Asker, op: Op) -> Result<String> {
        self.send(by, op, None).await
    }

    /// [`Self::ask`] for an operation on a container.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn ask_container(&self, by: Asker, id: &str, op: Op) -> Result<String> {
        self.send(by, op, Some(id.to_owned())).await
    }

    async fn send(&self, by: Asker, op: Op, container: Option<String>) -> Result<String> {
        let (reply, answer) = Reply::new();
        let lost = |_| {
            Error::new(
                Kind::Unavailable,
                format!("sandbox {}: the daemon is ending", self.id),
            )
        };
        let request = Request {
            op,
            container,
            by,
            reply,
        };
        if let Err(SendError(Request { op, container, .. })) = self.queue.send(request).await {
            // The driver ends only when its pod is removed.
            let id = container.as_ref().unwrap_or(&self.id);
            return op.on_absent(id).map(|()| id.clone());
        }
        answer.await.map_err(lost)?
    }

    /// Queues the stop of an evicted container, once at a time, and does not wait for its end. Work
    /// of one pod reaches into another pod only this way (ARCHITECTURE.md, "Who waits for whom" 2).
    pub fn stop_evicted(self: &Arc<Self>, container: &Arc<Container>) {
        if container.evicting.swap(true, Ordering::AcqRel) {
            return;
        }
        let (pod, container) = (Arc::clone(self), Arc::clone(container));
        tokio::spawn(async move {
            let grace = Duration::ZERO;
            let stop = pod.ask_container(Asker::Runtime, &container.id, Op::Stop { grace });
            if let Err(error) = stop.await {
                tracing::warn!(pod = %pod.id, container = %container.id, %error, "its eviction failed");
            }
            container.evicting.store(false, Ordering::Release);
        });
    }

    pub fn set_known(&self) {
        self.known.store(true, Ordering::Relaxed);
    }

    pub fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }
}

impl Container {
    pub fn new(cell: Cell<ContainerRecord>) -> Self {
        let record = cell.get();
        let notified = record.phase == ContainerPhase::Exited && record.hooks.stop == Mark::Done;
        Self {
            id: record.id.clone(),
            cell,
            monitor: watch::Sender::new(None),
            grace: Grace::default(),
            resources: ResourcesTurn::default(),
            exit_reported: watch::Sender::new(notified),
            known: AtomicBool::new(false),
            evicting: AtomicBool::new(false),
            message: Mutex::new(None),
            skips: Skips::default(),
            ending: CancellationToken::new(),
            unkillable: AtomicBool::new(false),
        }
    }

    pub fn monitor(&self) -> Option<Monitor> {
        self.monitor.borrow().clone()
    }

    /// The monitor of a container that is RUNNING. After a restart it may not be found yet.
    ///
    /// # Errors
    /// WrongState for any other container.
    pub async fn running_monitor(&self) -> Result<Monitor> {
        if self.cell.get().phase == ContainerPhase::Running {
            let mut monitor = self.monitor.subscribe();
            // The match below reports a monitor that was not found.
            let _ = timeout(REATTACHED, monitor.wait_for(Option::is_some)).await;
        }
        match (self.cell.get().phase, self.monitor()) {
            (ContainerPhase::Running, Some(monitor)) => Ok(monitor),
            (ContainerPhase::Running, None) => Err(Error::new(
                Kind::Unavailable,
                format!("container {}: its monitor does not answer", self.id),
            )),
            _ => Err(Error::new(
                Kind::WrongState,
                format!("container {}: is not running", self.id),
            )),
        }
    }

    pub fn set_monitor(&self, monitor: Option<Monitor>) {
        self.monitor.send_replace(monitor);
    }

    pub fn set_message(&self, message: &proto_nri::Container) {
        *self.message.lock() = Some(message.encode_to_vec().into());
    }

    pub fn has_message(&self) -> bool {
        self.message.lock().is_some()
    }

    /// `message.rs: container` adds the current state. `None` if the spec is not known.
    pub fn message(&self) -> Option<proto_nri::Container> {
        let message = self.message.lock();
        // We encoded it, so it can be decoded.
        proto_nri::Container::decode(&**message.as_ref()?).ok()
    }

    /// The exit is recorded and plugins are notified: callers of [`Self::wait_exit_reported`] go on.
    pub fn set_exit_reported(&self) {
        self.exit_reported.send_replace(true);
    }

    pub async fn wait_exit_reported(&self) {
        // `self` owns the sender, so the wait cannot fail.
        let _ = self
            .exit_reported
            .subscribe()
            .wait_for(|notified| *notified)
            .await;
    }

    /// The result of `work`, which is dropped if the container is to end and `patience` has passed.
    ///
    /// # Errors
    /// WrongState, if it is dropped.
    pub async fn unless_it_ends<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.ends_within(patience) => Err(Error::new(
                Kind::WrongState,
                "given up, since the container is to be removed",
            )),
        }
    }

    /// Ready when its stop or removal was requested and `patience` from this call has passed.
    pub async fn ends_within(&self, patience: Duration) {
        let begun = Instant::now();
        self.ending.cancelled().await;
        tokio::time::sleep_until(begun + patience).await;
    }

    pub fn set_known(&self) {
        self.known.store(true, Ordering::Relaxed);
    }

    pub fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }
}
