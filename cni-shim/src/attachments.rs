//! The networks that sandboxes have: which backend the next one gets, and effect and record of each in the order that
//! a crash allows. Only this module writes records.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{RwLock, Semaphore};

use crate::bridge::{Bridge, BridgeError, delete_link};
use crate::cni::{Cni, CniError, ConfList, Found, LIMIT_ANNOTATIONS, Tolerate};
use crate::error::NetworkError;
use crate::record::{Backend, OnBridge, OnCni, Record, Records, Unreadable};
use crate::types::{Attach, Attachment, Config, NotReady};

/// How often a DEL whose program is in none of the directories fails, before it is taken for done: programs are also
/// gone for a moment while they are replaced.
const MISSING_TRIES: u32 = 5;

/// All networks of sandboxes, and what gives them.
#[derive(Debug)]
pub(crate) struct Attachments {
    pub(crate) records: Records,
    /// What is on disk, by sandbox id.
    pub(crate) known: Mutex<BTreeMap<String, Record>>,
    /// Records that cannot be read: their sandboxes keep what they have.
    pub(crate) unreadable: Mutex<BTreeMap<String, Unreadable>>,
    /// DELs that failed for want of a program, by sandbox id.
    pub(crate) missing: Mutex<HashMap<String, u32>>,
    pub(crate) bridge: Option<Bridge>,
    pub(crate) cni: Cni,
    /// CNI operations at a time.
    pub(crate) permits: Semaphore,
    /// Shared by CNI operations of sandboxes, exclusive for garbage collection.
    pub(crate) collecting: RwLock<()>,
}

/// Who gives the next pod its network.
pub(crate) enum Choice {
    Cni(Arc<ConfList>),
    Bridge,
}

impl Attachments {
    /// Reads the records of earlier runs. Touches no link. Blocks on small file reads.
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
            bridge,
            cni: Cni::new(config),
            permits: Semaphore::new(config.parallel.clamp(1, 1024)),
            collecting: RwLock::new(()),
        })
    }

    /// A valid CNI configuration wins; files that are all invalid are an error, not a reason for another network.
    pub(crate) fn choose(&self) -> Result<Choice, NotReady> {
        match self.cni.look() {
            Found::List { list, .. } => Ok(Choice::Cni(list)),
            Found::Invalid(wrong) => Err(NotReady {
                reason: "InvalidCniConfiguration",
                message: wrong.join("; "),
            }),
            Found::Nothing => self.bridge().map(|_| Choice::Bridge),
        }
    }

    pub(crate) fn bridge(&self) -> Result<&Bridge, NotReady> {
        self.bridge
            .as_ref()
            .ok_or_else(|| no_network(self.cni.conf_dir()))
    }

    pub(crate) fn attach_to_bridge(&self, attach: &Attach) -> Result<Attachment, NetworkError> {
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
                Err(error.into())
            }
        }
    }

    pub(crate) fn detach_from_bridge(
        &self,
        sandbox_id: &str,
        held: &OnBridge,
    ) -> Result<(), NetworkError> {
        let Some(bridge) = &self.bridge else {
            // The bridge was configured away while the pod lived: its link still has to go.
            delete_link(&held.veth).map_err(BridgeError::from)?;
            return self.forget(sandbox_id);
        };
        bridge.disconnect(held)?;
        self.forget(sandbox_id)?;
        // Last: whoever gets the address next must find no record of it.
        bridge.release(sandbox_id, held);
        Ok(())
    }

    pub(crate) fn abandon_on_bridge(
        &self,
        sandbox_id: &str,
        held: &OnBridge,
    ) -> Result<(), NetworkError> {
        if let Err(error) = self.detach_from_bridge(sandbox_id, held) {
            log_undo(sandbox_id, &error);
            if let Some(bridge) = &self.bridge {
                bridge.release(sandbox_id, held);
            }
        }
        Ok(())
    }

    pub(crate) fn record(&self, sandbox_id: &str) -> Option<Record> {
        self.known.lock().get(sandbox_id).cloned()
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
        Ok(())
    }

    pub(crate) async fn attach_by_cni(
        &self,
        list: &ConfList,
        attach: &Attach,
    ) -> Result<Attachment, NetworkError> {
        let held = self.cni.prepare(list, attach)?;
        let record = Record::new(
            &attach.sandbox_id,
            &attach.netns,
            Backend::Cni(held.clone()),
        );
        self.remember(&record)?;
        let added = {
            let _shared = self.collecting.read().await;
            let _permit = self.permits.acquire().await;
            self.cni.add(&attach.sandbox_id, &attach.netns, &held).await
        };
        match added {
            Ok(attachment) => Ok(attachment),
            Err(error) => {
                // A program that is missing has added nothing.
                let undone = self
                    .del_by_cni(
                        &attach.sandbox_id,
                        &attach.netns,
                        &held,
                        Tolerate::MissingPrograms,
                    )
                    .await;
                match undone.and_then(|()| self.forget(&attach.sandbox_id)) {
                    Ok(()) => {}
                    Err(undo) => log_undo(&attach.sandbox_id, &undo),
                }
                Err(error.into())
            }
        }
    }

    pub(crate) async fn del_by_cni(
        &self,
        sandbox_id: &str,
        netns: &Path,
        held: &OnCni,
        tolerate: Tolerate,
    ) -> Result<(), NetworkError> {
        let _shared = self.collecting.read().await;
        let _permit = self.permits.acquire().await;
        let tries = self.missing.lock().get(sandbox_id).copied();
        let tolerate = match tries {
            Some(MISSING_TRIES..) => tolerate.max(Tolerate::MissingPrograms),
            _ => tolerate,
        };
        let done = self.cni.del(sandbox_id, netns, held, tolerate).await;
        let mut missing = self.missing.lock();
        match &done {
            Err(CniError::PluginMissing { .. }) => {
                *missing.entry(sandbox_id.to_owned()).or_default() += 1;
            }
            _ => drop(missing.remove(sandbox_id)),
        }
        Ok(done?)
    }
}

pub(crate) fn no_network(conf_dir: &Path) -> NotReady {
    let message = format!(
        "no CNI configuration in {} and no built-in bridge",
        conf_dir.display()
    );
    NotReady {
        reason: "NetworkNotConfigured",
        message,
    }
}

pub(crate) fn log_undo(sandbox: &str, error: &NetworkError) {
    tracing::warn!(sandbox, %error, "the network of a sandbox could not be torn down completely");
}
