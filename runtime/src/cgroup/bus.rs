//! The connection to systemd's manager, over D-Bus: calls, and the ends of the jobs that they start.

use futures_util::StreamExt as _;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use zbus::zvariant::DynamicType;
use zbus::{Connection, Message, MessageStream, OwnedObjectPath, connection};

/// Longest that systemd may take for an answer, and then for a job.
const ANSWER: Duration = Duration::from_secs(30);
/// Ended jobs that nobody has looked at yet; more than systemd runs at a time.
const JOBS: usize = 4096;

const SYSTEMD: &str = "org.freedesktop.systemd1";
pub(super) const OBJECT: &str = "/org/freedesktop/systemd1";
pub(super) const MANAGER: &str = "org.freedesktop.systemd1.Manager";

#[derive(Debug, Clone)]
pub(super) struct Link {
    connection: Connection,
    /// Job and result of each job that ended.
    jobs: broadcast::Sender<(OwnedObjectPath, String)>,
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
        let link = Self { connection, jobs };
        let rule = format!("type='signal',interface='{MANAGER}',member='JobRemoved'");
        let daemon = "org.freedesktop.DBus";
        link.connection
            .call_method(
                Some(daemon),
                "/org/freedesktop/DBus",
                Some(daemon),
                "AddMatch",
                &rule,
            )
            .await?;
        // Before any call: no signal may be missed, and nobody else empties the queue.
        tokio::spawn(hear(
            MessageStream::from(&link.connection),
            link.jobs.clone(),
        ));
        link.call("Subscribe", &()).await?;
        Ok(link)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_closed()
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

    /// A method that starts a job, and the job's end.
    pub(super) async fn job<B: Serialize + DynamicType>(
        &self,
        method: &str,
        body: &B,
    ) -> zbus::Result<()> {
        let mut ended = self.jobs.subscribe();
        let answer = self.call(method, body).await?;
        let job: OwnedObjectPath = answer.body().deserialize()?;
        let waited = tokio::time::timeout(ANSWER, async {
            loop {
                match ended.recv().await {
                    Ok((one, result)) if one == job => return Ok(result),
                    Ok(_) => {}
                    Err(_) => return Err("the connection to systemd was lost"),
                }
            }
        });
        match waited.await {
            Ok(Ok(result)) if result == "done" => Ok(()),
            Ok(Ok(result)) => Err(zbus::Error::Failure(format!("its job ended as {result}"))),
            Ok(Err(lost)) => Err(zbus::Error::Failure(lost.to_owned())),
            Err(_) => Err(zbus::Error::Failure(format!(
                "its job has not ended after {ANSWER:?}"
            ))),
        }
    }
}

/// Tells of each job's end, until the connection ends.
async fn hear(mut messages: MessageStream, jobs: broadcast::Sender<(OwnedObjectPath, String)>) {
    while let Some(message) = messages.next().await {
        let Ok(message) = message else { continue };
        let header = message.header();
        let named = |name: Option<&str>, wanted| name == Some(wanted);
        if !named(header.member().map(|m| m.as_str()), "JobRemoved")
            || !named(header.interface().map(|i| i.as_str()), MANAGER)
        {
            continue;
        }
        let body = message
            .body()
            .deserialize::<(u32, OwnedObjectPath, String, String)>();
        if let Ok((_, job, _, result)) = body {
            // Nobody waits for it.
            let _ = jobs.send((job, result));
        }
    }
}

/// Whether it is the error of this name that was answered.
pub(super) fn is_named(error: &zbus::Error, wanted: &str) -> bool {
    matches!(error, zbus::Error::MethodError(name, _, _) if name.as_str() == wanted)
}
