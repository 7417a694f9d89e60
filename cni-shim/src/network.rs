//! The interface to the network of all sandboxes: attach, detach. `attachments.rs` chooses
//! the backend, and orders effects and records.
//!
//! ```text
//!   (none) ──attach──► recorded ──effects──► attached ──detach──► effects undone ──► (none)
//!                          └──── failure or crash: detach undoes what is there ────┘
//! ```
//! At most one operation per sandbox runs at a time (CRI-518).

use std::sync::Arc;
use std::time::Duration;

use crate::attachments::{Attachments, Choice, log_undo};
use crate::bridge::{BridgeError, unplug_name};
use crate::cni::{NAME_MAX, Tolerate, is_name};
use crate::error::NetworkError;
use crate::namespaces::set_interface_sysctls;
use crate::record::Backend;
use crate::turns::Turns;
use crate::types::{Attach, Attachment, Config, NotReady};

/// Interval of checks while a pod waits for a network.
const READY_PAUSE: Duration = Duration::from_millis(200);

/// A handle; clones share its state.
#[derive(Debug, Clone)]
pub struct Network {
    pub(crate) attachments: Arc<Attachments>,
    turns: Turns,
    /// How long a pod waits for a ready network.
    ready_timeout: Duration,
}

impl Network {
    /// Reads the records of earlier runs, blocking on small files. Touches no link.
    pub fn new(config: Config) -> Result<Self, NetworkError> {
        Ok(Self {
            attachments: Arc::new(Attachments::load(&config)?),
            turns: Turns::default(),
            ready_timeout: config.ready_timeout,
        })
    }

    /// Whether a pod could get a network now (CRI-104, CRI-503). Always reads the directory.
    pub async fn status(&self) -> Result<(), NotReady> {
        match self.attachments.choose().await? {
            Choice::Cni(list) => self.attachments.cni.status(&list).await,
            Choice::Bridge => self
                .blocking(|all| Ok(all.bridge()?.status()?))
                .await
                .map_err(not_ready),
        }
    }

    /// Attaches a sandbox. A failure leaves nothing, or a record of the rest for
    /// [`Network::detach`] and [`Network::gc`]. Not safe to cancel: run it in its own task.
    pub async fn attach(&self, attach: Attach) -> Result<Attachment, NetworkError> {
        check_id(&attach.sandbox_id)?;
        let sandbox_id = attach.sandbox_id.clone();
        let _turn = self.turns.wait(&sandbox_id).await;
        if self.attachments.recorded(&attach.sandbox_id).is_some() {
            return Err(NetworkError::AlreadyAttached(attach.sandbox_id));
        }
        let attachment = match self.choose_within(self.ready_timeout).await? {
            Choice::Cni(list) => self.attachments.attach_by_cni(&list, &attach).await?,
            Choice::Bridge => {
                let attach = attach.clone();
                self.blocking(move |all| all.attach_to_bridge(&attach))
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

    /// Detaches a sandbox, idempotent; from its record alone, so also after a crash. Without a
    /// record (after a reboot, of another runtime) it deletes entries of the CNI result cache.
    /// Where the network never came up, a failed DEL is logged, once, and left to
    /// [`Network::collect`].
    pub async fn detach(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        check_id(sandbox_id)?;
        let _turn = self.turns.wait(sandbox_id).await;
        let all = &self.attachments;
        if all.left.lock().contains(sandbox_id) {
            return Ok(());
        }
        match self.detach_in_turn(sandbox_id).await {
            Err(error @ NetworkError::Cni(_)) if all.never_added(sandbox_id) => {
                all.leave(sandbox_id, &error);
                Ok(())
            }
            detached => detached,
        }
    }

    /// Detaches a removed sandbox.
    pub(crate) async fn detach_leftover(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        let _turn = self.turns.wait(sandbox_id).await;
        self.detach_in_turn(sandbox_id).await
    }

    /// Forgets a sandbox; network parts that cannot be undone stay and are logged. For forced
    /// removals.
    pub async fn abandon(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        check_id(sandbox_id)?;
        let _turn = self.turns.wait(sandbox_id).await;
        if let Err(error) = self.undo(sandbox_id, Tolerate::Everything).await {
            log_undo(sandbox_id, &error);
        }
        if self.attachments.unreadable.lock().contains_key(sandbox_id) {
            let id = sandbox_id.to_owned();
            let deleted = self
                .blocking(move |_| Ok(unplug_name(&id).map_err(BridgeError::from)?))
                .await;
            if let Err(error) = deleted {
                log_undo(sandbox_id, &error);
            }
        }
        self.attachments.forget(sandbox_id)
    }

    async fn detach_in_turn(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        if let Some(record) = self.attachments.unreadable.lock().get(sandbox_id) {
            return Err(NetworkError::Unreadable {
                path: self.attachments.records.path(sandbox_id),
                reason: record.reason.clone(),
            });
        }
        // A CNI record is removed here, last; a bridge's in `undo`; others in `abandon`.
        let by_cni = matches!(
            self.attachments.recorded(sandbox_id),
            Some((_, Backend::Cni(_)))
        );
        self.undo(sandbox_id, Tolerate::Nothing).await?;
        if by_cni {
            self.attachments.forget(sandbox_id)
        } else {
            Ok(())
        }
    }

    /// Undoes a recorded network, and removes a bridge's record; without one, undoes cached
    /// results. `Tolerate::Everything` continues after a failure and releases the addresses.
    async fn undo(&self, sandbox_id: &str, tolerate: Tolerate) -> Result<(), NetworkError> {
        let added = match self.attachments.recorded(sandbox_id) {
            Some((_, Backend::Bridge(endpoint))) => {
                let id = sandbox_id.to_owned();
                let detach = self.blocking(move |all| {
                    let undone = all.detach_from_bridge(&id, &endpoint);
                    if undone.is_err()
                        && tolerate == Tolerate::Everything
                        && let Some(bridge) = &all.bridge
                    {
                        bridge.release(&id, &endpoint);
                    }
                    undone
                });
                return detach.await;
            }
            Some((netns, Backend::Cni(endpoint))) => vec![(netns, endpoint)],
            None => self.attachments.cni.find_cached(sandbox_id),
        };
        let mut undone = Ok(());
        for (netns, endpoint) in added {
            let all = &self.attachments;
            let one = all
                .del_by_cni(sandbox_id, &netns, &endpoint, tolerate)
                .await;
            undone = undone.and(one);
            if undone.is_err() && tolerate != Tolerate::Everything {
                break;
            }
        }
        undone
    }

    /// Waits while no network is ready (CRI-503): at the start of a node the network's own pods
    /// write its configuration, and bring its programs.
    async fn choose_within(&self, patience: Duration) -> Result<Choice, NotReady> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let answer = match self.attachments.choose().await {
                Ok(Choice::Cni(list)) => {
                    let ready = self.attachments.cni.status(&list).await;
                    ready.map(|()| Choice::Cni(list))
                }
                other => other,
            };
            match answer {
                Err(_) if tokio::time::Instant::now() + READY_PAUSE < deadline => {
                    tokio::time::sleep(READY_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Attachments) -> Result<T, NetworkError> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let attachments = self.attachments.clone();
        tokio::task::spawn_blocking(move || work(&attachments))
            .await
            .map_err(|lost| NetworkError::Worker(lost.to_string()))?
    }
}

fn not_ready(error: NetworkError) -> NotReady {
    match error {
        NetworkError::NotReady(why) | NetworkError::Bridge(BridgeError::NotReady(why)) => why,
        other => NotReady::new("NetworkSetupFailed", other.to_string()),
    }
}

/// Ids become file names and plugin arguments.
pub(crate) fn check_id(sandbox_id: &str) -> Result<(), NetworkError> {
    if is_name(sandbox_id) {
        return Ok(());
    }
    let shown = sandbox_id.chars().take(NAME_MAX).collect();
    Err(NetworkError::SandboxId(shown))
}
