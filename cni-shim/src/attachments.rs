//! The networks of sandboxes. Chooses the backend of a new sandbox, and orders effects and records
//! so that a crash between them is safe. Only this module writes records.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::bridge::{Bridge, BridgeError, unplug};
use crate::cni::{Cni, CniError, ConfList, DEL_TIMEOUT, Found, Patience, Tolerate};
use crate::error::NetworkError;
use crate::exclusion::Exclusion;
use crate::record::{Backend, OnBridge, OnCni, Record, Records, Unreadable};
use crate::types::{Attach, Attachment, Config, INTERFACE, NotReady};

/// Failures of a DEL with a missing program before it counts as done: programs are also missing for
/// a moment during their replacement.
const MISSING_TRIES: u32 = 5;

/// All networks of sandboxes, and their backends.
#[derive(Debug)]
pub(crate) struct Attachments {
    pub(crate) records: Records,
    /// The records on disk, by sandbox id.
    pub(crate) known: Mutex<BTreeMap<String, Record>>,
    /// Unreadable records; their sandboxes keep their networks.
    pub(crate) unreadable: Mutex<BTreeMap<String, Unreadable>>,
    /// Number of DELs that failed because of a missing program, by sandbox id.
    pub(crate) missing: Mutex<HashMap<String, u32>>,
    /// Sandboxes whose network never came up and whose DEL failed: only garbage collection tries
    /// again.
    pub(crate) left: Mutex<HashSet<String>>,
    pub(crate) bridge: Option<Bridge>,
    pub(crate) cni: Cni,
    /// Limits concurrent CNI operations.
    pub(crate) permits: Semaphore,
    /// Between CNI operations of sandboxes and garbage collection.
    pub(crate) exclusion: Exclusion,
}

/// The backend of the next pod.
pub(crate) enum Choice {
    Cni(Arc<ConfList>),
    Bridge,
}

impl Attachments {
    /// Reads the records of earlier runs, blocking on small files. Touches no link.
    pub(crate) fn load(config: &Config) -> Result<Attachments, NetworkError> {
        let records = Records::open(&config.state_dir)?;
        let loaded = records.load()?;
        let bridge = config
            .bridge
            .clone()
            .map(|bridge| Bridge::new(bridge, &loaded))
            .transpose()?;
        Ok(Attachments {
            records,
            known: Mutex::new(loaded.records),
            unreadable: Mutex::new(loaded.unreadable),
            missing: Mutex::default(),
            left: Mutex::default(),
            bridge,
            cni: Cni::new(config),
            permits: Semaphore::new(config.parallel.clamp(1, 1024)),
            exclusion: Exclusion::default(),
        })
    }

    /// A valid CNI configuration wins. Only invalid files are an error: the bridge is not used.
    pub(crate) async fn choose(self: &Arc<Self>) -> Result<Choice, NotReady> {
        let unavailable = |why| NotReady::new("CniConfigurationUnavailable", why);
        let asked = vec![self.cni.conf.path().to_owned()];
        self.cni.answers.of(asked).await.map_err(unavailable)?;
        let all = Arc::clone(self);
        let found = tokio::task::spawn_blocking(move || all.cni.conf.look()).await;
        match found.map_err(|lost| unavailable(lost.to_string()))? {
            Found::List(list) => Ok(Choice::Cni(list)),
            Found::Invalid(wrong) => {
                Err(NotReady::new("InvalidCniConfiguration", wrong.join("; ")))
            }
            Found::Nothing => self.bridge().map(|_| Choice::Bridge),
        }
    }

    pub(crate) fn bridge(&self) -> Result<&Bridge, NotReady> {
        self.bridge.as_ref().ok_or_else(|| {
            let dir = self.cni.conf.path().display();
            let message = format!("no CNI configuration in {dir} and no built-in bridge");
            NotReady::new("NetworkNotConfigured", message)
        })
    }

    pub(crate) fn attach_to_bridge(&self, attach: &Attach) -> Result<Attachment, NetworkError> {
        let bridge = self.bridge()?;
        let (id, netns) = (&attach.sandbox_id, &attach.netns);
        let endpoint = bridge.reserve(attach)?;
        let record = Record::new(id, netns, Backend::Bridge(endpoint.clone()));
        if let Err(error) = self.remember(&record) {
            bridge.release(id, &endpoint);
            return Err(error);
        }
        match bridge.connect(netns, &endpoint) {
            Ok(attachment) => Ok(attachment),
            Err(error) => {
                if let Err(undo) = self.detach_from_bridge(id, &endpoint) {
                    log_undo(id, &undo);
                }
                Err(error.into())
            }
        }
    }

    pub(crate) fn detach_from_bridge(
        &self,
        sandbox_id: &str,
        endpoint: &OnBridge,
    ) -> Result<(), NetworkError> {
        let Some(bridge) = &self.bridge else {
            // The bridge is no longer configured; the pod's link must be removed anyway.
            unplug(endpoint).map_err(BridgeError::from)?;
            return self.forget(sandbox_id);
        };
        bridge.disconnect(endpoint)?;
        self.forget(sandbox_id)?;
        // Last: the next owner of the address must not find this record.
        bridge.release(sandbox_id, endpoint);
        Ok(())
    }

    /// A sandbox's network namespace, and the data to undo its attachment.
    pub(crate) fn recorded(&self, sandbox_id: &str) -> Option<(PathBuf, Backend)> {
        let record = self.known.lock().get(sandbox_id).cloned();
        record.map(|record| (record.netns, record.backend))
    }

    pub(crate) fn remember(&self, record: &Record) -> Result<(), NetworkError> {
        self.records.write(record)?;
        self.known
            .lock()
            .insert(record.sandbox_id.clone(), record.clone());
        Ok(())
    }

    pub(crate) fn forget(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        self.records.remove(sandbox_id)?;
        self.known.lock().remove(sandbox_id);
        self.unreadable.lock().remove(sandbox_id);
        self.left.lock().remove(sandbox_id);
        Ok(())
    }

    /// Whether a CNI network was begun for a sandbox, and no ADD of it has succeeded.
    pub(crate) fn never_added(&self, sandbox_id: &str) -> bool {
        let known = self.known.lock();
        known.get(sandbox_id).is_some_and(|record| !record.added)
    }

    /// Keeps the record of such a sandbox for garbage collection.
    pub(crate) fn leave(&self, sandbox_id: &str, error: &NetworkError) {
        tracing::warn!(sandbox = sandbox_id, %error, "cannot undo a network that never came up; left to garbage collection");
        self.left.lock().insert(sandbox_id.to_owned());
    }

    pub(crate) async fn attach_by_cni(
        &self,
        list: &ConfList,
        attach: &Attach,
    ) -> Result<Attachment, NetworkError> {
        let (id, netns) = (&attach.sandbox_id, &attach.netns);
        let endpoint = self.cni.prepare(list, attach)?;
        let mut record = Record::new(id, netns, Backend::Cni(endpoint.clone()));
        self.remember(&record)?;
        let deadline = self.cni.add_deadline();
        let mut patience = Patience::until(deadline);
        loop {
            let added = {
                let _operation = self.exclusion.operation().await;
                let _permit = self.permits.acquire().await;
                self.cni.add(id, netns, &endpoint, deadline).await
            };
            record.added = added.is_ok();
            let error = match added.map_err(NetworkError::from) {
                Ok(attachment) => match self.remember(&record) {
                    Ok(()) => return Ok(attachment),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            // Before a retry too: a sandbox must not be added twice without a DEL between. A
            // missing program has added nothing.
            let missing = Tolerate::MissingPrograms;
            let undone = self.del_by_cni(id, netns, &endpoint, missing).await;
            if let (Ok(()), NetworkError::Cni(error)) = (&undone, &error)
                && patience.waits_for(error).await
            {
                continue;
            }
            match undone {
                Ok(()) => {
                    if let Err(undo) = self.forget(id) {
                        log_undo(id, &undo);
                    }
                }
                Err(undo) => self.leave(id, &undo),
            }
            return Err(error);
        }
    }

    pub(crate) async fn del_by_cni(
        &self,
        sandbox_id: &str,
        netns: &Path,
        endpoint: &OnCni,
        tolerate: Tolerate,
    ) -> Result<(), NetworkError> {
        let deadline = Instant::now() + DEL_TIMEOUT;
        let mut patience = Patience::until(deadline);
        loop {
            let done = {
                let _operation = self.exclusion.operation().await;
                let _permit = self.permits.acquire().await;
                let tries = self.missing.lock().get(sandbox_id).copied();
                let tolerate = match tries {
                    Some(MISSING_TRIES..) => tolerate.max(Tolerate::MissingPrograms),
                    _ => tolerate,
                };
                self.cni
                    .del(sandbox_id, netns, endpoint, tolerate, deadline)
                    .await
            };
            if let Err(error) = &done
                && patience.waits_for(error).await
            {
                continue;
            }
            let mut missing = self.missing.lock();
            match &done {
                Err(CniError::PluginMissing { .. }) => {
                    *missing.entry(sandbox_id.to_owned()).or_default() += 1;
                }
                _ => drop(missing.remove(sandbox_id)),
            }
            return Ok(done?);
        }
    }

    /// Sandboxes that a CNI network must keep, unreadable ones too (CRI-517), and their interfaces.
    pub(crate) fn valid_attachments(&self, network: &str) -> Vec<(String, String)> {
        let known = self.known.lock();
        let readable = known.values().filter_map(|record| match &record.backend {
            Backend::Cni(endpoint) if endpoint.network == network => {
                Some((record.sandbox_id.clone(), endpoint.interface.clone()))
            }
            _ => None,
        });
        let unreadable = self.unreadable.lock();
        let perhaps = unreadable.keys();
        let perhaps = perhaps.map(|id| (id.clone(), INTERFACE.to_owned()));
        readable.chain(perhaps).collect()
    }
}

pub(crate) fn log_undo(sandbox: &str, error: &NetworkError) {
    tracing::warn!(sandbox, %error, "cannot completely undo the network of a sandbox");
}
