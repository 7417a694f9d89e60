//! The way from async code to the file system.

/// File system work off the async threads. A panic there is carried on here.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only at shutdown of the runtime, when nobody polls us any more.
            Err(_) => std::future::pending().await,
        },
    }
}
