//! Limits of a session.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::link::Link;

/// How long a client may take to open the streams that it asked for.
pub(super) const CREATION: Duration = Duration::from_secs(30);

/// Limits of a session.
#[derive(Clone)]
pub(super) struct Limits {
    /// Without any data.
    pub idle: Duration,
    /// The daemon is ending.
    pub stop: CancellationToken,
}

/// Reason for cutting a session.
pub(super) async fn cut(link: &Link, limits: &Limits) -> &'static str {
    let gone = link.gone();
    tokio::select! {
        () = gone.cancelled() => "the client is gone",
        () = limits.stop.cancelled() => "the runtime is shutting down",
        () = link.idle(limits.idle) => "no data for the whole idle timeout",
    }
}
