//! Pods and their containers: the only place where their state changes.
//!
//! ```text
//!  pod        Creating ──RunPodSandbox──► Ready ──Stop, or found dead──► NotReady ──Remove──► gone
//!                 └─────── any failure: undone, gone (or NotReady with the step that could not be undone)
//!
//!  container  Creating ──Create──► Created ──Start──► Running ──exit──► Exited ──Remove──► gone
//!                 └ failure: gone      └────start fails────────────────────┘
//!                                   Unknown: the monitor does not answer after a restart
//! ```
//!
//! Each pod has one driver task (`driver.rs`), which admits (`admit.rs`) and runs steps; only
//! those steps write records. List and Status read the records' snapshots and never wait.
//!
//! | file | holds |
//! |---|---|
//! | `registry.rs` | ids, names, prefixes, snapshots for List |
//! | `start.rs` | RunPodSandbox in typed phases, each with its undo |
//! | `stop.rs` | StopPodSandbox and RemovePodSandbox, resumable |
//! | `container/` | one file per thing that can happen to a container |
//! | `hooks.rs` | the contract points: the only caller of NRI dispatch |
//! | `events.rs` | changes of phase, told to subscribers |
//! | `recover.rs` | what a restart makes of the records |

pub mod admit;
pub mod container;
pub mod driver;
pub mod error;
pub mod events;
pub mod files;
pub mod hooks;
pub mod journal;
pub mod messages;
pub mod pause;
pub mod record;
pub mod recover;
pub mod registry;
pub mod spec;
pub mod start;
pub mod stop;
pub mod update;

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use self::{
    driver::{ContainerWork, Message, Reply},
    error::{Error, Kind, Result},
    record::{ContainerPhase, ContainerRecord, Mark, PodPhase, PodRecord},
};
use crate::{monitor::Monitor, services::Services, store::Cell};

/// One pod: shared by its driver, the steps it runs, and readers.
pub struct Pod {
    pub id: String,
    pub cell: Cell<PodRecord>,
    pub services: Arc<Services>,
    containers: RwLock<BTreeMap<String, Arc<Container>>>,
    queue: mpsc::Sender<Message>,
    /// The client of a RunPodSandbox that succeeded was gone by then (CRI-113).
    undelivered: AtomicBool,
}

/// One container: shared by its pod's driver, the steps it runs, and readers.
pub struct Container {
    pub id: String,
    pub cell: Cell<ContainerRecord>,
    /// The connection to its monitor, from start to removal.
    monitor: Mutex<Option<Monitor>>,
    /// The deadline of a stop under way.
    pub grace: Grace,
    /// One change of resources at a time, from whichever side it comes.
    pub resources_turn: tokio::sync::Mutex<()>,
    /// True once an exit is on record and has been told to plugins.
    ended: watch::Sender<bool>,
    undelivered: AtomicBool,
    /// Why a plugin wanted it stopped, if one did.
    pub evicted: OnceLock<String>,
    /// What of its NRI message the spec says; kept only where NRI is on.
    message: Mutex<Option<proto_nri::Container>>,
}

impl Pod {
    pub fn new(
        services: Arc<Services>,
        cell: Cell<PodRecord>,
    ) -> (Arc<Self>, mpsc::Receiver<Message>) {
        let (queue, receiver) = mpsc::channel(driver::QUEUE);
        let pod = Arc::new(Self {
            id: cell.get().id.clone(),
            cell,
            services,
            containers: RwLock::default(),
            queue,
            undelivered: AtomicBool::new(false),
        });
        (pod, receiver)
    }

    /// True when a stop has completed: everything is given back, the hook was told.
    pub fn stopped(&self) -> bool {
        let record = self.cell.get();
        record.phase == PodPhase::NotReady
            && record.hooks.stop == Mark::Done
            && record.failed_step.is_none()
            && record.namespaces == record::Namespaces::default()
            && !record.network_begun
    }

    /// The pinned user namespace, opened, where the pod has one.
    ///
    /// # Errors
    /// When the pin cannot be opened.
    pub fn user_namespace(&self) -> std::io::Result<Option<Arc<OwnedFd>>> {
        let pinned = self.cell.get().namespaces.user.clone();
        let file = pinned.map(std::fs::File::open).transpose()?;
        Ok(file.map(|file| Arc::new(file.into())))
    }

    pub fn container(&self, id: &str) -> Option<Arc<Container>> {
        self.read_containers().get(id).cloned()
    }

    /// By `name_attempt`.
    pub fn container_named(&self, key: &str) -> Option<Arc<Container>> {
        self.read_containers()
            .values()
            .find(|container| container.cell.get().name_key() == key)
            .cloned()
    }

    /// All of them, also those still being created.
    pub fn containers(&self) -> Vec<Arc<Container>> {
        self.read_containers().values().cloned().collect()
    }

    pub fn insert(&self, container: Arc<Container>) {
        self.containers
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(container.id.clone(), container);
    }

    pub fn forget(&self, id: &str) {
        self.containers
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
    }

    fn read_containers(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<Container>>> {
        self.containers
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request into the pod's queue and waits for its end. Dropping the future abandons
    /// the answer, not the work (CRI-008).
    ///
    /// # Errors
    /// What the work ended in, or [`Kind::Unavailable`] when the daemon is ending.
    pub async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let lost = |_| {
            Error::new(
                Kind::Unavailable,
                format!("sandbox {}: the daemon is ending", self.id),
            )
        };
        if self.queue.send(message(reply)).await.is_err() {
            // The driver ends only when its pod was removed.
            return Err(Error::no_sandbox(&self.id));
        }
        answer.await.map_err(lost)?
    }

    /// [`Self::ask`] for one container.
    ///
    /// # Errors
    /// As there.
    pub async fn ask_container(&self, id: &str, work: ContainerWork) -> Result<()> {
        let id = id.to_owned();
        self.ask(|reply| Message::Container { id, work, reply })
            .await
    }

    /// Puts a request into the queue and does not wait for its end: how one pod's work reaches
    /// into another pod (design.md, "Who waits for whom" 2).
    pub fn post_container(self: &Arc<Self>, id: &str, work: ContainerWork) {
        let (pod, id) = (Arc::clone(self), id.to_owned());
        tokio::spawn(async move {
            if let Err(error) = pod.ask_container(&id, work).await {
                tracing::warn!(pod = %pod.id, container = %id, %error, "a posted request failed");
            }
        });
    }

    pub fn set_undelivered(&self) {
        self.undelivered.store(true, Ordering::Release);
    }

    pub fn take_undelivered(&self) -> bool {
        self.undelivered.swap(false, Ordering::AcqRel)
    }
}

impl Container {
    pub fn new(cell: Cell<ContainerRecord>) -> Self {
        let record = cell.get();
        let ended = record.phase == ContainerPhase::Exited && record.hooks.stop == Mark::Done;
        Self {
            id: record.id.clone(),
            cell,
            monitor: Mutex::new(None),
            grace: Grace::default(),
            resources_turn: tokio::sync::Mutex::default(),
            ended: watch::Sender::new(ended),
            undelivered: AtomicBool::new(false),
            evicted: OnceLock::new(),
            message: Mutex::new(None),
        }
    }

    /// A container whose creation begins; its record is not on disk yet.
    pub fn creating(pod: &Pod, request: &container::create::Request) -> Self {
        let record = container::create::first_record(pod, request);
        Self::new(Cell::loaded(pod.services.containers.clone(), record))
    }

    pub fn monitor(&self) -> Option<Monitor> {
        self.monitor
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn set_monitor(&self, monitor: Option<Monitor>) {
        *self.monitor.lock().unwrap_or_else(PoisonError::into_inner) = monitor;
    }

    pub fn set_message(&self, message: proto_nri::Container) {
        *self.message.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }

    pub fn has_message(&self) -> bool {
        self.message
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    /// See [`messages::container`] for the whole of it. `None` where its spec is not known.
    pub fn message(&self) -> Option<proto_nri::Container> {
        self.message
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The exit is on record and told: whoever waits in [`Self::wait_ended`] goes on.
    pub fn set_ended(&self) {
        self.ended.send_replace(true);
    }

    pub async fn wait_ended(&self) {
        // The sender lives in self: the wait cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    pub fn set_undelivered(&self) {
        self.undelivered.store(true, Ordering::Release);
    }

    pub fn take_undelivered(&self) -> bool {
        self.undelivered.swap(false, Ordering::AcqRel)
    }
}

/// The deadline of a grace period, which a second stop may only bring nearer (CRI-132).
pub struct Grace(watch::Sender<Option<Instant>>);

impl Default for Grace {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Grace {
    /// Sets the deadline, whatever it was.
    pub fn begin(&self, grace: Duration) {
        self.0.send_replace(deadline(grace));
    }

    /// Brings the deadline nearer; never moves it away.
    pub fn shorten(&self, grace: Duration) {
        let new = deadline(grace);
        self.0.send_if_modified(|old| match (*old, new) {
            (Some(old_at), Some(new_at)) if old_at <= new_at => false,
            (_, None) => false,
            _ => {
                *old = new;
                true
            }
        });
    }

    /// Returns when the deadline, as it is then, has passed.
    pub async fn over(&self) {
        let mut deadline = self.0.subscribe();
        loop {
            let at = *deadline.borrow_and_update();
            let passed = async {
                match at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = passed => return,
                _ = deadline.changed() => {}
            }
        }
    }
}

/// `None` for a grace longer than any clock counts.
fn deadline(grace: Duration) -> Option<Instant> {
    Instant::now().checked_add(grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_shorter_stop_brings_the_deadline_nearer_and_a_longer_one_does_not_move_it() {
        let grace = Grace::default();
        let begun = Instant::now();
        grace.begin(Duration::from_secs(60));
        grace.shorten(Duration::from_secs(600));
        let second = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            grace.shorten(Duration::from_secs(2));
        };
        tokio::join!(grace.over(), second);
        assert_eq!(begun.elapsed().as_secs(), 3);
    }
}
