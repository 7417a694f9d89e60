//! The network of all sandboxes: which backend a sandbox gets, and the order of effect and record.
//!
//! ```text
//!   (none) ──attach──► recorded ──effects──► attached ──detach──► effects undone ──► (none)
//!                          └──── failure or crash: detach undoes what is there ────┘
//! ```
//! Only this module writes records. At most one operation per sandbox runs at a time (CRI-518).

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bridge::Bridge;
use crate::record::{Backend, OnBridge, Record, Records};
use crate::types::{Attach, Attachment, Config, NetworkError, NotReady};

/// Length of a sandbox id.
const ID_MAX: usize = 128;

/// A handle; clones share everything.
#[derive(Debug, Clone)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    records: Records,
    /// What is on disk, by sandbox id.
    known: Mutex<BTreeMap<String, Record>>,
    bridge: Option<Bridge>,
    /// One lock per sandbox with an operation under way.
    busy: SandboxLocks,
}

type SandboxLocks = Mutex<std::collections::HashMap<String, Arc<tokio::sync::Mutex<()>>>>;

impl Network {
    /// Reads the records of earlier runs. Touches no link. Blocks on small file reads.
    pub fn new(config: Config) -> Result<Self, NetworkError> {
        let records = Records::open(&config.state_dir)?;
        let known = records.load()?;
        let bridge = config
            .bridge
            .clone()
            .map(|bridge| Bridge::new(bridge, &known))
            .transpose()?;
        let inner = Inner {
            records,
            known: Mutex::new(known),
            bridge,
            busy: SandboxLocks::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Whether a pod could get a network now (CRI-104, CRI-503).
    pub async fn status(&self) -> Result<(), NotReady> {
        self.blocking(|inner| match &inner.bridge {
            Some(bridge) => bridge.status(),
            None => Err(no_network().into()),
        })
        .await
        .map_err(not_ready)
    }

    /// Gives a sandbox its network. On failure nothing of it is left, or what could not be undone stays recorded for
    /// [`Network::detach`] and [`Network::gc`].
    pub async fn attach(&self, attach: Attach) -> Result<Attachment, NetworkError> {
        check_id(&attach.sandbox_id)?;
        let _turn = self.turn(&attach.sandbox_id).await;
        self.blocking(move |inner| inner.attach_to_bridge(&attach))
            .await
    }

    /// Takes a sandbox's network away; from the record alone, so also after a crash. Idempotent.
    pub async fn detach(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        check_id(sandbox_id)?;
        let _turn = self.turn(sandbox_id).await;
        let Some(record) = self.inner.record(sandbox_id) else {
            return Ok(());
        };
        self.blocking(move |inner| inner.detach_from_bridge(&record))
            .await
    }

    /// Detaches every sandbox that is not in `valid` (CRI-517). Goes on after a failure and returns the first.
    pub async fn gc(&self, valid: &HashSet<String>) -> Result<(), NetworkError> {
        let orphans: Vec<String> = lock(&self.inner.known)
            .keys()
            .filter(|id| !valid.contains(*id))
            .cloned()
            .collect();
        let mut first = Ok(());
        for orphan in orphans {
            let done = self.detach(&orphan).await;
            first = first.and(done);
        }
        first
    }

    async fn turn(&self, sandbox_id: &str) -> Turn {
        let own = lock(&self.inner.busy)
            .entry(sandbox_id.to_owned())
            .or_default()
            .clone();
        Turn {
            network: self.clone(),
            sandbox_id: sandbox_id.to_owned(),
            _guard: own.lock_owned().await,
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, NetworkError> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let inner = self.inner.clone();
        tokio::task::spawn_blocking(move || work(&inner))
            .await
            .map_err(|lost| NetworkError::Worker(lost.to_string()))?
    }
}

/// The right to change one sandbox's network; forgotten when nobody waits for it.
struct Turn {
    network: Network,
    sandbox_id: String,
    _guard: tokio::sync::OwnedMutexGuard<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut busy = lock(&self.network.inner.busy);
        // Two owners: the table and this guard. More means that somebody waits.
        if busy
            .get(&self.sandbox_id)
            .is_some_and(|own| Arc::strong_count(own) <= 2)
        {
            busy.remove(&self.sandbox_id);
        }
    }
}

impl Inner {
    fn attach_to_bridge(&self, attach: &Attach) -> Result<Attachment, NetworkError> {
        let bridge = self.bridge.as_ref().ok_or_else(no_network)?;
        if self.record(&attach.sandbox_id).is_some() {
            return Err(NetworkError::AlreadyAttached(attach.sandbox_id.clone()));
        }
        let held = bridge.reserve(attach)?;
        let record = Record::new(
            &attach.sandbox_id,
            &attach.netns,
            Backend::Bridge(held.clone()),
        );
        if let Err(error) = self.remember(&record) {
            bridge.release(&attach.sandbox_id, &held);
            return Err(error);
        }
        bridge
            .connect(&attach.netns, &held)
            .inspect_err(|_| self.undo(&record))
    }

    fn undo(&self, record: &Record) {
        if let Err(error) = self.detach_from_bridge(record) {
            tracing::warn!(sandbox = record.sandbox_id, %error, "a failed attach is not wholly undone");
        }
    }

    fn detach_from_bridge(&self, record: &Record) -> Result<(), NetworkError> {
        let (Backend::Bridge(held), Some(bridge)) = (&record.backend, &self.bridge) else {
            return Err(no_network().into());
        };
        self.unplug(bridge, &record.sandbox_id, held)
    }

    fn unplug(
        &self,
        bridge: &Bridge,
        sandbox_id: &str,
        held: &OnBridge,
    ) -> Result<(), NetworkError> {
        bridge.disconnect(held)?;
        self.forget(sandbox_id)?;
        // Last: whoever gets the address next must find no record of it.
        bridge.release(sandbox_id, held);
        Ok(())
    }

    fn record(&self, sandbox_id: &str) -> Option<Record> {
        lock(&self.known).get(sandbox_id).cloned()
    }

    fn remember(&self, record: &Record) -> Result<(), NetworkError> {
        self.records.write(record)?;
        lock(&self.known).insert(record.sandbox_id.clone(), record.clone());
        Ok(())
    }

    fn forget(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        self.records.remove(sandbox_id)?;
        lock(&self.known).remove(sandbox_id);
        Ok(())
    }
}

fn no_network() -> NotReady {
    NotReady {
        reason: "NetworkNotConfigured",
        message: "no CNI configuration and no built-in bridge".into(),
    }
}

fn not_ready(error: NetworkError) -> NotReady {
    match error {
        NetworkError::NotReady(why) => why,
        other => NotReady {
            reason: "NetworkSetupFailed",
            message: other.to_string(),
        },
    }
}

/// Ids become file names and plugin arguments.
fn check_id(sandbox_id: &str) -> Result<(), NetworkError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    let starts_well = sandbox_id.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && sandbox_id.len() <= ID_MAX && sandbox_id.bytes().all(plain) {
        return Ok(());
    }
    Err(NetworkError::SandboxId(
        sandbox_id.chars().take(ID_MAX).collect(),
    ))
}

/// Values behind these locks are whole at every point where a panic could happen.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
