//! Runs file system work from async code.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use tokio::task::JoinError;

use crate::seeded;

/// Runs blocking work off the async threads. Its panic continues here.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match try_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // Only at shutdown of the runtime, which polls no more.
            Err(_) => std::future::pending().await,
        },
    }
}

/// As [`blocking`], with a panic as an error.
///
/// # Errors
/// The work panicked, or the runtime shuts down.
pub async fn try_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let work = match seeded::in_line(work).await {
        Ok(done) => return Ok(done),
        Err(work) => work,
    };
    tokio::task::spawn_blocking(work).await
}

/// Runs work that waits for others on its own thread, not on the shared pool.
///
/// # Errors
/// The thread cannot be spawned.
pub async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let work = match seeded::in_line(work).await {
        Ok(done) => return Ok(done),
        Err(work) => work,
    };
    let (send, done) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new()
        .name("look-up".to_owned())
        .spawn(move || {
            let _within = runtime.enter();
            let _ = send.send(catch_unwind(AssertUnwindSafe(work))); // the caller may have left
        })?;
    match done.await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(lost) => Err(io::Error::other(lost)),
    }
}
