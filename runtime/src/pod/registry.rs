//! All pods: ids, unique prefixes, names, and the snapshots of List.
//!
//! The map's lock covers one look-up or insertion, and never an await.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::RwLock;
use tokio::sync::watch;

use super::{
    error::{AtStep as _, Error, Kind, Result},
    held::AllHeld,
    op::{Asker, Op},
    record::{ContainerPhase, PodPhase, PodRecord},
    state::{Container, Pod},
};

/// The outcome of a running RunPodSandbox, for all its callers.
pub type Starting = watch::Receiver<Option<Result<()>>>;

#[derive(Default)]
struct Inner {
    pods: BTreeMap<String, Arc<Pod>>,
    /// By `name_namespace_uid_attempt`, from reservation to removal.
    names: HashMap<String, Name>,
}

struct Name {
    id: String,
    starting: Option<Starting>,
}

#[derive(Default)]
pub struct Registry {
    inner: RwLock<Inner>,
    held: RwLock<Arc<AllHeld>>,
    held_removals: tokio::sync::Mutex<()>,
}

/// The result of reserving a name.
pub enum Reservation {
    /// The name is reserved for the new id.
    New,
    /// The same sandbox is being made: wait for it.
    Starting(String, Starting),
    /// The sandbox exists.
    There(Arc<Pod>),
}

impl Registry {
    /// Stores the unreadable objects that recovery found.
    pub fn hold(&self, held: AllHeld) {
        *self.held.write() = Arc::new(held);
    }

    /// The current held objects.
    pub fn held(&self) -> Arc<AllHeld> {
        Arc::clone(&self.held.read())
    }

    /// Held objects have no driver: one removal at a time.
    pub(super) async fn held_removals(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.held_removals.lock().await
    }

    /// Stops holding a removed object.
    pub(super) fn release<T>(&self, take: impl FnOnce(&mut AllHeld) -> T) -> T {
        take(Arc::make_mut(&mut self.held.write()))
    }

    /// Reserves the name for `id`, or returns its owner (CRI-110, CRI-113).
    pub fn reserve(&self, name: &str, id: &str, starting: Starting) -> Reservation {
        let mut inner = self.inner.write();
        if let Some(taken) = inner.names.get(name) {
            let pod = inner.pods.get(&taken.id).filter(|pod| listed(pod));
            match (&taken.starting, pod) {
                // Ready and visible, but not answered: the outcome decides whose answer it is.
                (Some(starting), Some(pod))
                    if starting.borrow().is_none() && pod.cell.get().phase == PodPhase::Ready =>
                {
                    return Reservation::Starting(taken.id.clone(), starting.clone());
                }
                (_, Some(pod)) => return Reservation::There(Arc::clone(pod)),
                (Some(starting), None) => {
                    return Reservation::Starting(taken.id.clone(), starting.clone());
                }
                (None, None) => {}
            }
        }
        inner.names.insert(
            name.to_owned(),
            Name {
                id: id.to_owned(),
                starting: Some(starting),
            },
        );
        Reservation::New
    }

    /// All pods, including those that are being made.
    pub fn all(&self) -> Vec<Arc<Pod>> {
        self.inner.read().pods.values().cloned().collect()
    }

    /// A pod by its full id, including one that is being made.
    pub fn any(&self, id: &str) -> Option<Arc<Pod>> {
        self.inner.read().pods.get(id).cloned()
    }

    /// Adds a pod. It is visible as soon as its phase is no longer Creating.
    pub fn publish(&self, pod: &Arc<Pod>) {
        let name = pod.cell.get().name_key();
        let mut inner = self.inner.write();
        inner.names.entry(name).or_insert_with(|| Name {
            id: pod.id.clone(),
            starting: None,
        });
        inner.pods.insert(pod.id.clone(), Arc::clone(pod));
    }

    /// Removes a pod and releases its name.
    pub fn forget(&self, record: &PodRecord) {
        let name = record.name_key();
        let mut inner = self.inner.write();
        inner.pods.remove(&record.id);
        if inner.names.get(&name).is_some_and(|n| n.id == record.id) {
            inner.names.remove(&name);
        }
    }

    /// Visible pods, oldest first.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        let mut pods: Vec<_> = self
            .inner
            .read()
            .pods
            .values()
            .filter(|pod| listed(pod))
            .cloned()
            .collect();
        pods.sort_by_key(|pod| pod.cell.get().created_at);
        pods
    }

    /// Visible containers with their pods.
    pub fn containers(&self) -> Vec<(Arc<Pod>, Arc<Container>)> {
        let mut found = Vec::new();
        for pod in self.inner.read().pods.values() {
            for container in pod.containers() {
                if visible(&container) {
                    found.push((Arc::clone(pod), container));
                }
            }
        }
        found.sort_by_key(|(_, container)| container.cell.get().created_at);
        found
    }

    /// Resolves a client's id or unique prefix to a pod (CRI-009).
    ///
    /// # Errors
    /// NotFound, or Invalid if the prefix is ambiguous.
    pub fn pod(&self, id: &str) -> Result<Arc<Pod>> {
        self.find_pod(id).inspect(|pod| pod.set_known())
    }

    /// Resolves a client's id or unique prefix to a container.
    ///
    /// # Errors
    /// NotFound, or Invalid if the prefix is ambiguous.
    pub fn container(&self, id: &str) -> Result<(Arc<Pod>, Arc<Container>)> {
        self.find_container(id)
            .inspect(|(_, container)| container.set_known())
    }

    /// Queues a client's operation on a pod, which it names by id or unique prefix.
    ///
    /// # Errors
    /// As [`Self::pod`], or the error of the operation.
    pub async fn ask(&self, id: &str, op: Op) -> Result<String> {
        match self.pod(id) {
            Ok(pod) => pod.ask(Asker::Client, op).await,
            Err(error) if error.kind == Kind::NotFound => op.on_absent(id).map(|()| id.to_owned()),
            Err(error) => Err(error),
        }
    }

    /// [`Self::ask`] for an operation on a container.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn ask_container(&self, id: &str, op: Op) -> Result<String> {
        match self.container(id) {
            Ok((pod, container)) => pod.ask_container(Asker::Client, &container.id, op).await,
            Err(error) if error.kind == Kind::NotFound => op.on_absent(id).map(|()| id.to_owned()),
            Err(error) => Err(error),
        }
    }

    fn find_pod(&self, id: &str) -> Result<Arc<Pod>> {
        let inner = self.inner.read();
        if let Some(pod) = inner.pods.get(id).filter(|pod| listed(pod)) {
            return Ok(Arc::clone(pod));
        }
        let candidates = inner
            .pods
            .range(id.to_owned()..)
            .take_while(|(key, _)| key.starts_with(id))
            .filter(|(_, pod)| listed(pod))
            .map(|(_, pod)| Arc::clone(pod));
        unique("sandbox", id, candidates)?.ok_or_else(|| self.no_pod(id))
    }

    /// The rejection of a held pod, else NotFound.
    fn no_pod(&self, id: &str) -> Error {
        match self.held().pod(id) {
            Some(held) => held.refusal("sandbox"),
            None => Error::no_sandbox(id),
        }
    }

    /// As [`Self::container`], for plugins, which know a container before its client does.
    ///
    /// # Errors
    /// As [`Self::container`].
    pub fn find_container(&self, id: &str) -> Result<(Arc<Pod>, Arc<Container>)> {
        let pods: Vec<_> = self.inner.read().pods.values().cloned().collect();
        for pod in &pods {
            if let Some(container) = pod.container(id).filter(|c| visible(c)) {
                return Ok((Arc::clone(pod), container));
            }
        }
        let all = pods.iter().flat_map(|pod| {
            pod.containers()
                .into_iter()
                .filter(|c| visible(c) && c.id.starts_with(id))
                .map(|container| (Arc::clone(pod), container))
        });
        unique("container", id, all)?.ok_or_else(|| match self.held().container(id) {
            Some(held) => held.refusal("container"),
            None => Error::no_container(id),
        })
    }
}

/// 64 hexadecimal digits (CRI-009).
///
/// # Errors
/// When the kernel gives no random bytes.
pub fn new_id() -> Result<String> {
    let mut bytes = [0; 32];
    if crate::seeded::fill(&mut bytes) {
        return Ok(hex(&bytes));
    }
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .step("random bytes")?;
    if filled < bytes.len() {
        return Err(Error::failed("random bytes: the kernel gave too few"));
    }
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A sandbox that is being made is hidden from all clients (CRI-100, NRI-1114).
fn listed(pod: &Pod) -> bool {
    pod.cell.get().phase != PodPhase::Creating
}

fn visible(container: &Container) -> bool {
    container.cell.get().phase != ContainerPhase::Creating
}

/// The only candidate; the empty id is not a prefix.
fn unique<T>(what: &str, id: &str, mut candidates: impl Iterator<Item = T>) -> Result<Option<T>> {
    if id.is_empty() {
        return Err(Error::invalid(format!("{what} id is empty")));
    }
    let first = candidates.next();
    if first.is_some() && candidates.next().is_some() {
        return Err(Error::new(
            Kind::Invalid,
            format!("{what} {id:?}: several begin so, give more of the id"),
        ));
    }
    Ok(first)
}
