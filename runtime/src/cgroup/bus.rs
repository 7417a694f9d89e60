//! The D-Bus connection to systemd's manager: calls, and the ends of the jobs that they start.
//!
//! Every user of the host can send signals to any connection. A signal counts only if its sender
//! owns systemd's name: the bus writes the sender and never reuses a name. A [`Link`] belongs to
//! one owner: it closes when another connection gets the name (systemd was re-executed).

use futures_util::StreamExt as _;
use serde::Serialize;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio_util::task::AbortOnDropHandle;
use zbus::message::{Header, Type};
use zbus::zvariant::DynamicType;
use zbus::{Connection, Message, MessageStream, OwnedObjectPath, connection};

/// The longest wait for an answer of systemd, and then for a job.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// Ends of jobs that are not yet read; more than systemd runs at a time.
const JOBS: usize = 4096;

const SYSTEMD: &str = "org.freedesktop.systemd1";
pub(super) const OBJECT: &str = "/org/freedesktop/systemd1";
pub(super) const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// The bus itself: name and interface.
const BUS: &str = "org.freedesktop.DBus";
const BUS_OBJECT: &str = "/org/freedesktop/DBus";

/// Unique name of the connection that owns systemd's name.
type Owner = Arc<OnceLock<String>>;

#[derive(Debug, Clone)]
pub(super) struct Link {
    connection: Connection,
    /// Job and result of each job that ended. The listener has the sender until the link closes.
    jobs: broadcast::WeakSender<(OwnedObjectPath, String)>,
    /// Aborted with the link: the listener would keep the connection open.
    _listener: Arc<AbortOnDropHandle<()>>,
}

/// The known state of a started job.
pub(super) enum Job {
    /// Its result, as systemd names it.
    Ended(String),
    /// Its end was missed or is late: look at the unit.
    Unknown(OwnedObjectPath),
}

impl Link {
    pub(super) async fn open(bus: &Path) -> zbus::Result<Self> {
        let stream = tokio::net::UnixStream::connect(bus)
            .await
            .and_then(tokio::net::UnixStream::into_std)
            .map_err(|error| zbus::Error::InputOutput(Arc::new(error)))?;
        let connection = connection::Builder::unix_stream(stream)
            .method_timeout(ANSWER)
            .build()
            .await?;
        let (jobs, _) = broadcast::channel(JOBS);
        let owner = Owner::default();
        let known = jobs.downgrade();
        // Before any call: no signal may be missed, and only this task empties the queue.
        let listener = tokio::spawn(listen(
            MessageStream::from(&connection),
            Arc::clone(&owner),
            jobs,
        ));
        let link = Self {
            connection,
            jobs: known,
            _listener: Arc::new(AbortOnDropHandle::new(listener)),
        };
        let ended = format!(
            "type='signal',sender='{SYSTEMD}',path='{OBJECT}',interface='{MANAGER}',member='JobRemoved'"
        );
        let moved = format!(
            "type='signal',sender='{BUS}',path='{BUS_OBJECT}',interface='{BUS}',member='NameOwnerChanged',arg0='{SYSTEMD}'"
        );
        for rule in [ended, moved] {
            link.ask_bus("AddMatch", &rule).await?;
        }
        // From here on every change of the owner is received.
        let name = link.ask_bus("GetNameOwner", &SYSTEMD).await?;
        let _ = owner.set(name.body().deserialize()?); // set only here
        link.call("Subscribe", &()).await?;
        Ok(link)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_closed() || self.jobs.strong_count() == 0
    }

    async fn ask_bus<B: Serialize + DynamicType>(
        &self,
        method: &str,
        body: &B,
    ) -> zbus::Result<Message> {
        self.connection
            .call_method(Some(BUS), BUS_OBJECT, Some(BUS), method, body)
            .await
    }

    pub(super) async fn call<B: Serialize + DynamicType>(
        &self,
        method: &str,
        body: &B,
    ) -> zbus::Result<Message> {
        self.connection
            .call_method(Some(SYSTEMD), OBJECT, Some(MANAGER), method, body)
            .await
    }

    /// Calls a method that starts a job, and waits for the job's end.
    pub(super) async fn job<B: Serialize + DynamicType>(
        &self,
        method: &str,
        body: &B,
    ) -> zbus::Result<Job> {
        // Subscribe before the call. A kept sender would hide the end of the link.
        let mut ended = self.jobs.upgrade().map(|jobs| jobs.subscribe());
        let answer = self.call(method, body).await?;
        let job: OwnedObjectPath = answer.body().deserialize()?;
        let Some(ended) = &mut ended else {
            return Ok(Job::Unknown(job));
        };
        let waited = tokio::time::timeout(ANSWER, async {
            loop {
                match ended.recv().await {
                    Ok((one, result)) if one == job => return Some(result),
                    Ok(_) => {}
                    // The queue has overrun, or the link is closed.
                    Err(_) => return None,
                }
            }
        });
        let result = waited.await.ok().flatten();
        Ok(result.map_or(Job::Unknown(job), Job::Ended))
    }
}

/// Reports the end of each job, until the connection ends or systemd's name changes its owner.
async fn listen(
    mut messages: MessageStream,
    owner: Owner,
    jobs: broadcast::Sender<(OwnedObjectPath, String)>,
) {
    while let Some(message) = messages.next().await {
        let Ok(message) = message else { continue };
        let header = message.header();
        if is_signal(&header, BUS, BUS, "NameOwnerChanged") {
            let body = message.body().deserialize::<(String, String, String)>();
            if body.is_ok_and(|(name, ..)| name == SYSTEMD) {
                return;
            }
        }
        let Some(owner) = owner.get() else { continue };
        if !is_signal(&header, owner, MANAGER, "JobRemoved") {
            continue;
        }
        let body = message
            .body()
            .deserialize::<(u32, OwnedObjectPath, String, String)>();
        if let Ok((_, job, _, result)) = body {
            // An error means that no caller waits.
            let _ = jobs.send((job, result));
        }
    }
}

fn is_signal(header: &Header<'_>, sender: &str, interface: &str, member: &str) -> bool {
    header.message_type() == Type::Signal
        && header.sender().is_some_and(|s| s.as_str() == sender)
        && header.interface().is_some_and(|i| i.as_str() == interface)
        && header.member().is_some_and(|m| m.as_str() == member)
}

/// Whether the answer is the error of this name.
pub(super) fn is_named(error: &zbus::Error, wanted: &str) -> bool {
    matches!(error, zbus::Error::MethodError(name, _, _) if name.as_str() == wanted)
}
