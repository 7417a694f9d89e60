//! Waiting for a condition with a deadline: the only way in which tests wait.

use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Sufficient for any single step on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Polls `condition` until it returns a value, for at most [`PATIENCE`].
///
/// # Panics
/// Names `what` if the deadline passes first.
pub async fn until<T, F, Fut>(what: &str, condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    until_within(what, PATIENCE, condition).await
}

/// As [`until`], with another deadline.
///
/// # Panics
/// Names `what` if the deadline passes first.
pub async fn until_within<T, F, Fut>(what: &str, patience: Duration, condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let answer = poll_within(patience, condition).await;
    answer.unwrap_or_else(|| panic!("waited {patience:?} in vain: {what}"))
}

/// As [`until_within`], for callers that continue without a value.
pub async fn poll_within<T, F, Fut>(patience: Duration, mut condition: F) -> Option<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(value) = condition().await {
            return Some(value);
        }
        if start.elapsed() >= patience {
            return None;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// [`until_within`] for code without an async runtime. Returns false after the deadline.
pub fn blocking(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
