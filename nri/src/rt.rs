//! Spawns every task of the library, so that a test can order them by a seed.

#[cfg(feature = "sim")]
pub(crate) use nri_sim::spawn;

#[cfg(not(feature = "sim"))]
pub(crate) fn spawn<F>(task: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "every task begins here")]
    tokio::spawn(task)
}
