//! Limits of a session.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::link::Link;

/// The time for a client to open the streams that it requested.
pub(super) const CREATION: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct Limits {
    /// The longest time without data.
    pub idle: Duration,
    /// Cancelled when the daemon ends.
    pub stop: CancellationToken,
}

/// Waits for the reason to cut a session.
pub(super) async fn cut(link: &Link, limits: &Limits) -> &'static str {
    let disconnected = link.disconnected();
    tokio::select! {
        () = disconnected.cancelled() => "the client has disconnected",
        () = limits.stop.cancelled() => "the runtime is shutting down",
        () = link.idle(limits.idle) => "no data within the idle timeout",
    }
}
