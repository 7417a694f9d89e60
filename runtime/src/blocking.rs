//! The way from async code to the file system.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use tokio::task::JoinError;

/// File system work off the async threads. A panic there is carried on here.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match try_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // Only at shutdown of the runtime, when nobody polls us any more.
            Err(_) => std::future::pending().await,
        },
    }
}

/// [`blocking`], with a panic as an error.
///
/// # Errors
/// It panicked, or the runtime is being shut down.
pub async fn try_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    #[cfg(test)]
    let work = match crate::seeded::in_line(work).await {
        Ok(done) => return Ok(done),
        Err(work) => work,
    };
    tokio::task::spawn_blocking(work).await
}

/// Work that waits for others: it takes no thread of the pool that serves everybody.
///
/// # Errors
/// There is no thread to be had.
pub async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    #[cfg(test)]
    let work = match crate::seeded::in_line(work).await {
        Ok(done) => return Ok(done),
        Err(work) => work,
    };
    let (send, done) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new()
        .name("look-up".to_owned())
        .spawn(move || {
            let _within = runtime.enter();
            // Whoever has given up does not wait for it.
            let _ = send.send(catch_unwind(AssertUnwindSafe(work)));
        })?;
    match done.await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(lost) => Err(io::Error::other(lost)),
    }
}
