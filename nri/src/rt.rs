//! Spawns every task of the library, so that a test can order them by a seed.

#[cfg(feature = "sim")]
pub(crate) use nri_sim::spawn;

#[cfg(not(feature = "sim"))]
use std::pin::Pin;

#[cfg(not(feature = "sim"))]
pub(crate) fn spawn<F>(task: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    // On the heap, so that tokio's code for a task is compiled once for each output.
    let task: Pin<Box<dyn Future<Output = F::Output> + Send>> = Box::pin(task);
    #[expect(clippy::disallowed_methods, reason = "every task begins here")]
    tokio::spawn(task)
}
