//! Time that goes on only when nothing else can.

/// Runs a future on a runtime of its own, whose clock goes on only when nothing else can.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a runtime can be made").block_on(future)
}
