//! A clock that advances only when every task is idle.

/// Runs a future on a runtime of its own, whose clock advances only when every task is idle.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a runtime can be made").block_on(future)
}
