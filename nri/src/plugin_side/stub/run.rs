//! The life of a plugin over many connections: the reaction to the end of one.
//!
//! | it ended because | without reconnecting, or launched | reconnecting |
//! |---|---|---|
//! | the runtime sent Shutdown | `Ok` | again, after five seconds at least |
//! | the connection was lost, or could not be made | that error | again, after the back-off |
//! | the plugin has no identity or no event | that error | that error |

use std::{env, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Stub, StubBuilder, StubError};
use crate::{source::BoxFuture, wire::process::ENV_SOCKET};

const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// A connection of this length resets the back-off (NRI-916).
const BACKOFF_RESET: Duration = Duration::from_secs(60);
/// Pause after Shutdown.
const BACKOFF_STOPPING: Duration = Duration::from_secs(5);

/// Reaction to the end of a connection.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The plugin has done its work.
    Done,
    /// It ends with this error.
    Fail,
    /// It reconnects after this pause.
    Again(Duration),
}

fn next(ended: &StubError, reconnects: bool, backoff: Duration) -> Next {
    match ended {
        ended if ended.is_final() => Next::Fail,
        StubError::Dismissed if reconnects => Next::Again(backoff.max(BACKOFF_STOPPING)),
        StubError::Dismissed => Next::Done,
        _ if reconnects => Next::Again(backoff),
        _ => Next::Fail,
    }
}

impl StubBuilder {
    /// Serves the plugin until it has done its work, and reconnects whenever the connection is
    /// lost: exponential back-off, 0.5 s to 30 s (NRI-916). Each end and each beginning is reported
    /// by an event of `tracing`, and to [`on_disconnect`](StubBuilder::on_disconnect).
    ///
    /// Ends with `Ok` when the runtime sends Shutdown and the plugin does not reconnect: because
    /// the runtime launched it and its socket cannot return, or by
    /// [`reconnect(false)`](StubBuilder::reconnect).
    pub fn run(self) -> BoxFuture<'static, Result<(), StubError>> {
        Box::pin(self.serve())
    }

    async fn serve(mut self) -> Result<(), StubError> {
        let reconnects = self.reconnect && env::var_os(ENV_SOCKET).is_none();
        let mut backoff = BACKOFF_FIRST;
        loop {
            let begun = Instant::now();
            let ended = self.serve_once().await;
            if begun.elapsed() >= BACKOFF_RESET {
                backoff = BACKOFF_FIRST;
            }
            let pause = match next(&ended, reconnects, backoff) {
                Next::Again(pause) => pause,
                over => {
                    self.report(&ended, None);
                    tracing::info!("{ended}");
                    return match over {
                        Next::Done => Ok(()),
                        _ => Err(ended),
                    };
                }
            };
            // A spread of an eighth, so that the plugins of a node do not reconnect all at once.
            let pause = pause + pause / 8 * (std::process::id() % 8) / 8;
            self.report(&ended, Some(pause));
            tracing::warn!("{ended}; connecting again in {pause:?}");
            sleep(pause).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// As [`run`](StubBuilder::run), and ends with `Ok` when `stop` does, for example on a signal.
    /// Running handlers are dropped then. Supervisors and runtimes send SIGTERM; Ctrl-C is SIGINT.
    ///
    /// ```no_run
    /// # async fn example(plugin: impl nri::Plugin) -> Result<(), Box<dyn std::error::Error>> {
    /// use tokio::signal::unix::{SignalKind, signal};       // feature `signal` of tokio
    ///
    /// let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    /// let stop = async {
    ///     tokio::select! {
    ///         _ = term.recv() => {}
    ///         _ = int.recv() => {}
    ///     }
    /// };
    /// nri::Stub::builder(plugin).run_until(stop).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), StubError> {
        tokio::select! {
            ended = self.run() => ended,
            () = stop => Ok(()),
        }
    }

    /// Serves one connection until it ends.
    async fn serve_once(&mut self) -> StubError {
        let connection = self.runtime.connection();
        let ended = match self.register_as(connection.clone()).await {
            Ok(stub) => serve_to_end(&stub).await,
            Err(e) => e,
        };
        connection.end();
        ended
    }

    fn report(&self, ended: &StubError, again: Option<Duration>) {
        if let Some(observer) = &self.on_disconnect {
            observer.0(ended, again);
        }
    }
}

async fn serve_to_end(stub: &Stub) -> StubError {
    if let Err(e) = stub.synchronized().await {
        return e;
    }
    let (plugin, info) = (stub.id(), stub.runtime_info());
    let (name, version) = (&info.name, &info.version);
    tracing::info!("plugin {plugin} serves {name} {version}");
    stub.wait().await
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Duration = Duration::from_secs(1);

    #[test]
    fn a_runtime_that_stops_is_no_error_and_is_tried_again_later_than_a_lost_one() {
        let ended = StubError::Dismissed;
        assert_eq!(next(&ended, false, BACKOFF), Next::Done);
        assert_eq!(next(&ended, true, BACKOFF), Next::Again(BACKOFF_STOPPING));
        assert_eq!(
            next(&ended, true, BACKOFF_MAX),
            Next::Again(BACKOFF_MAX),
            "the back-off goes on"
        );
        let lost = StubError::Ended("lost".to_owned());
        assert_eq!(next(&lost, true, BACKOFF), Next::Again(BACKOFF));
        assert_eq!(next(&lost, false, BACKOFF), Next::Fail);
    }

    #[test]
    fn what_no_attempt_can_mend_is_not_tried_again() {
        for reconnects in [true, false] {
            let nothing = StubError::NoHandlers;
            assert_eq!(next(&nothing, reconnects, BACKOFF), Next::Fail);
        }
    }
}
