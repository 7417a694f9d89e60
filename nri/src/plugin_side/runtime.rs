//! The connection from a plugin to its runtime.
//!
//! ```text
//!   detached ─► attached (a connection) ─► configured ─► synchronised ─► detached (Shutdown, or lost) ─► attached ─► …
//! ```
//!
//! The stub attaches and detaches; [`PluginService`](super::service::PluginService) reports when
//! the plugin is configured and synchronised. Handles only read the state.

use std::{fmt, sync::Arc, time::Duration};

use proto_nri::{
    ContainerEviction, ContainerUpdate, UpdateContainersRequest, UpdateContainersResponse,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    plugin_side::{answer::eviction, runtime_info::RuntimeInfo},
    wire::{
        event::Wire,
        rpc::{CallError, Client, Code, Status},
    },
};

/// Time for a runtime to read the answer to Synchronize: until then it rejects updates, which
/// travel beside that answer and can overtake it.
const SETTLING: Duration = Duration::from_secs(1);
const ASK_AGAIN: Duration = Duration::from_millis(2);

/// The runtime as a plugin reaches it, from anywhere: a handler's [`Context`](crate::Context), a
/// task of the plugin, `StubBuilder::runtime` before `run`. Clones are the same handle. It follows
/// the plugin: after a reconnect it uses the new connection.
///
/// ```no_run
/// # #[cfg(feature = "stub")] {
/// use nri::{Plugin, Stub, adjust::{SetResources, update}};
/// # async fn example(plugin: impl Plugin) -> Result<(), Box<dyn std::error::Error>> {
/// let stub = Stub::builder(plugin).name("balancer").index("50");
/// let runtime = stub.runtime();
/// tokio::spawn(async move {
///     runtime.synchronized().await;
///     let mut less = update("c1", false);
///     less.cpu_shares(128);
///     match runtime.update_containers(vec![less], Vec::new()).await {
///         Ok(failed) => println!("{} updates failed", failed.len()),
///         Err(e) => println!("{e}"),
///     }
/// });
/// stub.run().await?;
/// # Ok(()) }
/// # }
/// ```
#[derive(Clone)]
pub struct Runtime {
    link: Arc<watch::Sender<Link>>,
}

/// The present connection and its progress.
#[derive(Clone, Default)]
struct Link {
    /// Counts connections.
    number: u64,
    client: Option<Client>,
    info: Arc<RuntimeInfo>,
    synchronized: Option<Result<Instant, Status>>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = self.link.borrow();
        f.write_str(match &link.client {
            Some(_) => "Runtime(connected)",
            None => "Runtime(not connected)",
        })
    }
}

impl Runtime {
    /// Requests updates and evictions of containers from the runtime; returns the updates that
    /// could not be applied (NRI-917). A failed eviction is an update of that container without
    /// values, at the end; the Go runtime reports none. Waits at most the runtime's request
    /// timeout.
    ///
    /// Fails at once without a connection: between connections, from the runtime's Shutdown on, and
    /// always in an in-process plugin. Fails with code 9 before the plugin is synchronised;
    /// [`Runtime::synchronized`] waits for that.
    ///
    /// Do not wait for it inside a handler: the Go runtime answers after the handler.
    pub async fn update_containers(
        &self,
        update: Vec<ContainerUpdate>,
        evict: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, CallError> {
        let request = UpdateContainersRequest { update, evict }.to_wire();
        let mut pause = ASK_AGAIN;
        loop {
            let Link {
                number: _,
                client,
                info,
                synchronized,
            } = self.link.borrow().clone();
            let client =
                client.ok_or_else(|| CallError::Lost("not connected to a runtime".into()))?;
            let limit = info.request_timeout;
            let asked = client.call("UpdateContainers", request.clone(), limit);
            match asked.await {
                Err(CallError::Status(early))
                    if early.is(Code::FailedPrecondition)
                        && matches!(synchronized, Some(Ok(at)) if at.elapsed() < SETTLING) =>
                {
                    sleep(pause).await;
                    pause *= 2;
                }
                reply => {
                    let reply = UpdateContainersResponse::from_wire(&reply?);
                    return Ok(reply.map_err(CallError::BadReply)?.failed);
                }
            }
        }
    }

    /// Requests the eviction of one container, as [`Runtime::update_containers`] does. A failed
    /// eviction is a status of code 5, except on the Go runtime.
    pub async fn evict(
        &self,
        container: impl Into<String>,
        reason: impl Into<String>,
    ) -> Result<(), CallError> {
        let evict = vec![eviction(container, reason)];
        match self.update_containers(Vec::new(), evict).await?.first() {
            None => Ok(()),
            Some(failed) => {
                let text = format!("container {:?} was not evicted", failed.container_id);
                Err(CallError::Status(Status::new(Code::NotFound, text)))
            }
        }
    }

    /// Waits until the plugin is connected and synchronised; returns at once if it is.
    pub async fn synchronized(&self) {
        let mut link = self.link.subscribe();
        let there = link.wait_for(|link| matches!(link.synchronized, Some(Ok(_))));
        // The sender is ours and outlives the wait.
        let _ = there.await;
    }

    /// Identity of the runtime that the plugin is connected to; `None` before it is configured and
    /// between connections.
    pub fn info(&self) -> Option<RuntimeInfo> {
        let link = self.link.borrow();
        let configured = link.client.is_some() && !link.info.name.is_empty();
        configured.then(|| (*link.info).clone())
    }

    /// Of a plugin without a connection.
    pub(crate) fn detached() -> Self {
        Self {
            link: Arc::new(watch::Sender::new(Link::default())),
        }
    }

    pub(crate) fn known(&self) -> Arc<RuntimeInfo> {
        self.link.borrow().info.clone()
    }

    /// Begins the next connection; nothing of the earlier one remains.
    pub(crate) fn connection(&self) -> Connection {
        let mut number = 0;
        self.link.send_modify(|link| {
            number = link.number + 1;
            *link = Link {
                number,
                ..Link::default()
            };
        });
        Connection {
            runtime: self.clone(),
            number,
        }
    }
}

/// One connection of a [`Runtime`]. Its changes are ignored when there is a newer one: a handler
/// may outlive the connection that called it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) runtime: Runtime,
    number: u64,
}

impl Connection {
    fn change(&self, change: impl FnOnce(&mut Link)) {
        self.runtime.link.send_if_modified(|link| {
            let present = link.number == self.number;
            if present {
                change(link);
            }
            present
        });
    }

    pub(crate) fn configured(&self, info: Arc<RuntimeInfo>) {
        self.change(|link| link.info = info);
    }

    /// Records the outcome of Synchronize just before it is sent to the runtime.
    pub(crate) fn synchronize_answered(&self, outcome: Result<(), Status>) {
        let outcome = outcome.map(|()| Instant::now());
        self.change(|link| link.synchronized = Some(outcome));
    }
}

#[cfg(feature = "stub")]
impl Connection {
    pub(crate) fn attach(&self, client: Client) {
        self.change(|link| link.client = Some(client));
    }

    /// The connection is about to end: there are no further requests on it.
    pub(crate) fn dismiss(&self) {
        self.change(|link| (link.client, link.synchronized) = (None, None));
    }

    pub(crate) fn end(&self) {
        self.change(|link| {
            *link = Link {
                number: link.number + 1,
                ..Link::default()
            };
        });
    }
}

#[cfg(feature = "stub")]
impl Runtime {
    /// Waits for the answer to Synchronize; returns it.
    pub(crate) async fn synchronize_outcome(&self) -> Result<(), Status> {
        let mut link = self.link.subscribe();
        let answered = link.wait_for(|link| link.synchronized.is_some()).await;
        let outcome = answered.ok().and_then(|link| link.synchronized.clone());
        // The sender is ours, so an outcome exists.
        outcome.unwrap_or(Ok(Instant::now())).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_outlives_its_connection_does_not_change_the_next() {
        let runtime = Runtime::detached();
        let old = runtime.connection();
        let new = runtime.connection();
        old.synchronize_answered(Ok(()));
        assert_eq!(runtime.link.borrow().synchronized, None);
        new.synchronize_answered(Ok(()));
        old.synchronize_answered(Err(Status::new(Code::NotFound, "late")));
        assert!(matches!(runtime.link.borrow().synchronized, Some(Ok(_))));
    }
}
