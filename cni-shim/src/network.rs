//! The network of all sandboxes: which backend a sandbox gets, and the order of effect and record.
//!
//! ```text
//!   (none) ──attach──► recorded ──effects──► attached ──detach──► effects undone ──► (none)
//!                          └──── failure or crash: detach undoes what is there ────┘
//! ```
//! Only this module writes records. At most one operation per sandbox runs at a time (CRI-518).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{RwLock, Semaphore};

use crate::bridge::{Bridge, delete_link};
use crate::cni::{Cni, ConfList, Found, LIMIT_ANNOTATIONS};
use crate::namespaces::set_interface_sysctls;
use crate::record::{Backend, OnBridge, OnCni, Record, Records};
use crate::types::{Attach, Attachment, Config, NetworkError, NotReady};

/// Length of a sandbox id.
const ID_MAX: usize = 128;

/// How often a network that is not ready is looked at while a pod waits for it.
const READY_PAUSE: Duration = Duration::from_millis(200);

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
    cni: Cni,
    /// One lock per sandbox with an operation under way.
    busy: SandboxLocks,
    /// CNI operations at a time.
    permits: Semaphore,
    /// Shared by CNI operations of sandboxes, exclusive for garbage collection.
    collecting: RwLock<()>,
}

type SandboxLocks = Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>;

/// Who gives the next pod its network.
enum Choice {
    Cni(Arc<ConfList>),
    Bridge,
}

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
            cni: Cni::new(&config),
            busy: SandboxLocks::default(),
            permits: Semaphore::new(config.parallel.clamp(1, 1024)),
            collecting: RwLock::new(()),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Whether a pod could get a network now (CRI-104, CRI-503). The configuration directory is looked at each time.
    pub async fn status(&self) -> Result<(), NotReady> {
        match self.inner.choose()? {
            Choice::Cni(list) => self.inner.cni.status(&list).await,
            Choice::Bridge => self
                .blocking(|inner| inner.bridge()?.status())
                .await
                .map_err(not_ready),
        }
    }

    /// Waits until the network is ready, at most `patience` (CRI-503: 10 s for a pod that needs it).
    pub async fn wait_ready(&self, patience: Duration) -> Result<(), NotReady> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            match self.status().await {
                Err(_) if tokio::time::Instant::now() + READY_PAUSE < deadline => {
                    tokio::time::sleep(READY_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// One line for people: what network pods get, and which configuration files were skipped and why.
    pub fn describe(&self) -> String {
        match (self.inner.cni.look(), &self.inner.bridge) {
            (
                Found::List {
                    list,
                    path,
                    skipped,
                },
                _,
            ) => {
                let skipped: String = skipped
                    .iter()
                    .map(|why| format!("; skipped {why}"))
                    .collect();
                format!("CNI network {} from {}{skipped}", list.name, path.display())
            }
            (Found::Invalid(wrong), _) => {
                format!("no valid CNI configuration: {}", wrong.join("; "))
            }
            (Found::Nothing, Some(bridge)) => format!("built-in bridge {}", bridge.name()),
            (Found::Nothing, None) => no_network(self.inner.cni.conf_dir()).to_string(),
        }
    }

    /// Gives a sandbox its network. On failure nothing of it is left, or what could not be undone stays recorded for
    /// [`Network::detach`] and [`Network::gc`]. Not to be cancelled: run it on a task of its own.
    pub async fn attach(&self, attach: Attach) -> Result<Attachment, NetworkError> {
        check_id(&attach.sandbox_id)?;
        let sandbox_id = attach.sandbox_id.clone();
        let _turn = self.turn(&sandbox_id).await;
        if self.inner.record(&attach.sandbox_id).is_some() {
            return Err(NetworkError::AlreadyAttached(attach.sandbox_id));
        }
        let attachment = match self.inner.choose()? {
            Choice::Cni(list) => self.attach_by_cni(&list, &attach).await?,
            Choice::Bridge => {
                let attach = attach.clone();
                self.blocking(move |inner| inner.attach_to_bridge(&attach))
                    .await?
            }
        };
        if attach.sysctls.is_empty() {
            return Ok(attachment);
        }
        match self
            .blocking(move |_| Ok(set_interface_sysctls(&attach.netns, &attach.sysctls)?))
            .await
        {
            Ok(()) => Ok(attachment),
            Err(error) => {
                if let Err(undo) = self.detach_in_turn(&sandbox_id).await {
                    log_undo(&sandbox_id, &undo);
                }
                Err(error)
            }
        }
    }

    /// Takes a sandbox's network away; from the record alone, so also after a crash. Idempotent. A sandbox without a
    /// record may still be in the CNI result cache, after a reboot or from another runtime; it is deleted from there.
    pub async fn detach(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        check_id(sandbox_id)?;
        let _turn = self.turn(sandbox_id).await;
        self.detach_in_turn(sandbox_id).await
    }

    async fn detach_in_turn(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        match self.inner.record(sandbox_id) {
            Some(Record {
                backend: Backend::Bridge(held),
                ..
            }) => {
                let sandbox_id = sandbox_id.to_owned();
                self.blocking(move |inner| inner.detach_from_bridge(&sandbox_id, &held))
                    .await
            }
            Some(Record {
                backend: Backend::Cni(held),
                netns,
                ..
            }) => {
                self.del_by_cni(sandbox_id, &netns, &held).await?;
                self.inner.forget(sandbox_id)
            }
            None => {
                for (netns, held) in self.inner.cni.find_cached(sandbox_id) {
                    self.del_by_cni(sandbox_id, &netns, &held).await?;
                }
                Ok(())
            }
        }
    }

    /// Asks whether a sandbox's network is as it was made (CRI-515). Only CNI networks are looked at.
    pub async fn check(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        check_id(sandbox_id)?;
        let _turn = self.turn(sandbox_id).await;
        let Some(Record {
            backend: Backend::Cni(held),
            netns,
            ..
        }) = self.inner.record(sandbox_id)
        else {
            return Ok(());
        };
        let _shared = self.inner.collecting.read().await;
        let _permit = self.inner.permits.acquire().await;
        Ok(self.inner.cni.check(sandbox_id, &netns, &held).await?)
    }

    /// Detaches every sandbox that is not in `valid`, then lets CNI plugins collect (CRI-517). For the start, once all
    /// sandboxes are known. Goes on after a failure and returns the first.
    pub async fn gc(&self, valid: &HashSet<String>) -> Result<(), NetworkError> {
        let known: Vec<String> = lock(&self.inner.known).keys().cloned().collect();
        let mut orphans: Vec<String> = known.into_iter().filter(|id| !valid.contains(id)).collect();
        let list = match self.inner.choose() {
            Ok(Choice::Cni(list)) => Some(list),
            _ => None,
        };
        if let Some(list) = &list {
            orphans.extend(
                self.inner
                    .cni
                    .find_dead(&list.name, |id| valid.contains(id)),
            );
        }
        orphans.sort();
        orphans.dedup();
        let mut first = Ok(());
        for orphan in orphans {
            let done = self.detach(&orphan).await;
            first = first.and(done);
        }
        if let Some(list) = list {
            let _alone = self.inner.collecting.write().await;
            let attached: Vec<String> = lock(&self.inner.known).keys().cloned().collect();
            let done = self.inner.cni.gc(&list, &attached).await;
            first = first.and(done.map_err(Into::into));
        }
        first
    }

    /// Removes the built-in bridge and its rules from the node; refused while sandboxes are attached to it.
    pub async fn remove_bridge(&self) -> Result<(), NetworkError> {
        self.blocking(|inner| {
            let on_bridge = |record: &&Record| matches!(record.backend, Backend::Bridge(_));
            let attached = lock(&inner.known).values().filter(on_bridge).count();
            match &inner.bridge {
                Some(_) if attached > 0 => Err(NetworkError::BridgeInUse(attached)),
                Some(bridge) => bridge.remove(),
                None => Ok(()),
            }
        })
        .await
    }

    async fn attach_by_cni(
        &self,
        list: &ConfList,
        attach: &Attach,
    ) -> Result<Attachment, NetworkError> {
        let inner = &self.inner;
        let held = inner.cni.prepare(list, attach)?;
        let record = Record::new(
            &attach.sandbox_id,
            &attach.netns,
            Backend::Cni(held.clone()),
        );
        inner.remember(&record)?;
        let added = {
            let _shared = inner.collecting.read().await;
            let _permit = inner.permits.acquire().await;
            inner
                .cni
                .add(&attach.sandbox_id, &attach.netns, &held)
                .await
        };
        match added {
            Ok(attachment) => Ok(attachment),
            Err(error) => {
                let undone = self
                    .del_by_cni(&attach.sandbox_id, &attach.netns, &held)
                    .await;
                match undone.and_then(|()| inner.forget(&attach.sandbox_id)) {
                    Ok(()) => {}
                    Err(undo) => log_undo(&attach.sandbox_id, &undo),
                }
                Err(error.into())
            }
        }
    }

    async fn del_by_cni(
        &self,
        sandbox_id: &str,
        netns: &Path,
        held: &OnCni,
    ) -> Result<(), NetworkError> {
        let _shared = self.inner.collecting.read().await;
        let _permit = self.inner.permits.acquire().await;
        Ok(self.inner.cni.del(sandbox_id, netns, held).await?)
    }

    async fn turn(&self, sandbox_id: &str) -> Turn {
        let own = lock(&self.inner.busy)
            .entry(sandbox_id.to_owned())
            .or_default()
            .clone();
        let mut turn = Turn {
            network: self.clone(),
            sandbox_id: sandbox_id.to_owned(),
            own,
            guard: None,
        };
        turn.guard = Some(turn.own.clone().lock_owned().await);
        turn
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

/// The right to change one sandbox's network, or the wait for it. The last one clears the table's entry.
struct Turn {
    network: Network,
    sandbox_id: String,
    own: Arc<tokio::sync::Mutex<()>>,
    guard: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.guard = None;
        let mut busy = lock(&self.network.inner.busy);
        // Two owners: the table and this. Clones are made under the table's lock, so more means that somebody waits.
        if Arc::strong_count(&self.own) <= 2 {
            busy.remove(&self.sandbox_id);
        }
    }
}

impl Inner {
    /// A valid CNI configuration wins; files that are all invalid are an error, not a reason for another network.
    fn choose(&self) -> Result<Choice, NotReady> {
        match self.cni.look() {
            Found::List { list, .. } => Ok(Choice::Cni(list)),
            Found::Invalid(wrong) => Err(NotReady {
                reason: "InvalidCniConfiguration",
                message: wrong.join("; "),
            }),
            Found::Nothing => self.bridge().map(|_| Choice::Bridge).map_err(not_ready),
        }
    }

    fn bridge(&self) -> Result<&Bridge, NetworkError> {
        self.bridge
            .as_ref()
            .ok_or_else(|| no_network(self.cni.conf_dir()).into())
    }

    fn attach_to_bridge(&self, attach: &Attach) -> Result<Attachment, NetworkError> {
        let bridge = self.bridge()?;
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
        match bridge.connect(&attach.netns, &held) {
            Ok(mut attachment) => {
                let limited = LIMIT_ANNOTATIONS
                    .iter()
                    .find(|key| attach.annotations.contains_key(**key));
                attachment.warnings.extend(
                    limited.map(|key| format!("the built-in bridge does not enforce {key}")),
                );
                Ok(attachment)
            }
            Err(error) => {
                if let Err(undo) = self.detach_from_bridge(&attach.sandbox_id, &held) {
                    log_undo(&attach.sandbox_id, &undo);
                }
                Err(error)
            }
        }
    }

    fn detach_from_bridge(&self, sandbox_id: &str, held: &OnBridge) -> Result<(), NetworkError> {
        let Some(bridge) = &self.bridge else {
            // The bridge was configured away while the pod lived: its link still has to go.
            delete_link(&held.veth)?;
            return self.forget(sandbox_id);
        };
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

fn no_network(conf_dir: &Path) -> NotReady {
    let message = format!(
        "no CNI configuration in {} and no built-in bridge",
        conf_dir.display()
    );
    NotReady {
        reason: "NetworkNotConfigured",
        message,
    }
}

fn log_undo(sandbox: &str, error: &NetworkError) {
    tracing::warn!(sandbox, %error, "a failed attach is not wholly undone; it stays recorded");
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
