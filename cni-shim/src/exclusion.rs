//! GC never runs beside another operation of a CNI plugin.
//!
//! CNI 1.1.0 ("Lifecycle & Ordering") allows operations of different sandboxes at once, and makes GC
//! the exception: no ADD or DEL may be in progress when it begins, and none may begin before it has
//! ended. But a pod must not wait for another pod's slow ADD only because a GC does:
//!
//! - A GC that waits bars nothing. It begins at a moment without operations, or not at all.
//! - A GC that runs is ended when an operation has waited for [`YIELD`]: a later one takes up the
//!   rest.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// The time that an operation of a sandbox waits for a running GC.
pub(crate) const YIELD: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Exclusion(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    /// Operations of sandboxes that run.
    operations: usize,
    /// Operations that wait for a GC.
    waiting: usize,
    collecting: bool,
}

/// Why a GC did not run to its end. A later one may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Busy {
    #[error("not begun: ADDs and DELs never paused; try again later")]
    NoMoment,
    #[error("ended after pods had waited {} s for it; try again later", YIELD.as_secs())]
    GaveWay,
}

/// The right to run an operation of a sandbox.
pub(crate) struct Operation<'a>(&'a Exclusion);

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| state.operations -= 1);
    }
}

struct Waiting<'a>(&'a Exclusion);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| state.waiting -= 1);
    }
}

struct Collecting<'a>(&'a Exclusion);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| state.collecting = false);
    }
}

impl Exclusion {
    /// Waits while a GC runs.
    pub(crate) async fn operation(&self) -> Operation<'_> {
        let begin = |state: &mut State| {
            state.operations += usize::from(!state.collecting);
            !state.collecting
        };
        if self.0.send_if_modified(begin) {
            return Operation(self);
        }
        self.0.send_modify(|state| state.waiting += 1);
        let _waiting = Waiting(self);
        while !self.0.send_if_modified(begin) {
            self.until(|state| !state.collecting).await;
        }
        Operation(self)
    }

    /// Runs a GC at the first moment without operations.
    ///
    /// # Errors
    /// There is none within `patience`, or the GC gave way.
    pub(crate) async fn alone<T>(
        &self,
        patience: Duration,
        gc: impl Future<Output = T>,
    ) -> Result<T, Busy> {
        let begin = |state: &mut State| {
            let is_free = state.operations == 0 && !state.collecting;
            state.collecting |= is_free;
            is_free
        };
        let deadline = Instant::now() + patience;
        while !self.0.send_if_modified(begin) {
            let free = self.until(|state| state.operations == 0 && !state.collecting);
            let free = timeout_at(deadline, free).await;
            free.map_err(|_| Busy::NoMoment)?;
        }
        let _collecting = Collecting(self);
        tokio::select! {
            biased;
            done = gc => Ok(done),
            () = self.has_waited() => Err(Busy::GaveWay),
        }
    }

    /// Ready when operations have waited for [`YIELD`].
    async fn has_waited(&self) {
        loop {
            self.until(|state| state.waiting > 0).await;
            tokio::select! {
                () = sleep(YIELD) => return,
                () = self.until(|state| state.waiting == 0) => {}
            }
        }
    }

    async fn until(&self, is: impl FnMut(&State) -> bool) {
        // It fails only without the sender, which is ours.
        drop(self.0.subscribe().wait_for(is).await);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Spawns a GC that never ends, and waits until it runs or waits.
    async fn endless(exclusion: &Arc<Exclusion>) -> tokio::task::JoinHandle<Result<(), Busy>> {
        let shared = exclusion.clone();
        let gc = tokio::spawn(async move { shared.alone(PATIENCE, pending()).await });
        for _ in 0..8 {
            yield_now().await;
        }
        gc
    }

    #[tokio::test(start_paused = true)]
    async fn a_gc_that_waits_for_an_operation_bars_no_other() {
        let exclusion = Arc::new(Exclusion::default());
        let slow = exclusion.operation().await;
        let begun = Instant::now();
        let shared = exclusion.clone();
        let gc = tokio::spawn(async move { shared.alone(PATIENCE, async { 7 }).await });
        for _ in 0..100 {
            yield_now().await;
            drop(exclusion.operation().await);
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(!gc.is_finished(), "it waits");
        drop(slow);
        assert_eq!(gc.await.expect("no panic"), Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gc_without_a_moment_of_its_own_fails_in_time() {
        let exclusion = Exclusion::default();
        let _slow = exclusion.operation().await;
        let begun = Instant::now();
        let ran = exclusion.alone(PATIENCE, pending::<()>()).await;
        assert_eq!((ran, begun.elapsed()), (Err(Busy::NoMoment), PATIENCE));
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_waits_for_a_running_gc_and_not_longer_than_it_must() {
        let exclusion = Arc::new(Exclusion::default());
        let gc = endless(&exclusion).await;
        let begun = Instant::now();
        let (first, second) = tokio::join!(exclusion.operation(), exclusion.operation());
        assert!(begun.elapsed() >= YIELD && begun.elapsed() < 2 * YIELD);
        assert_eq!(gc.await.expect("no panic"), Err(Busy::GaveWay));
        drop((first, second));
        assert_eq!(exclusion.alone(PATIENCE, async { 7 }).await, Ok(7));
        assert_eq!(exclusion.0.borrow().waiting, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gc_that_nobody_waits_for_goes_on_also_after_an_operation_gave_up() {
        let exclusion = Arc::new(Exclusion::default());
        let gc = endless(&exclusion).await;
        let soon = YIELD / 2;
        let given_up = tokio::time::timeout(soon, exclusion.operation()).await;
        assert!(given_up.is_err());
        advance(10 * YIELD).await;
        for _ in 0..8 {
            yield_now().await;
        }
        assert!(!gc.is_finished());
        gc.abort();
        assert!(gc.await.expect_err("aborted").is_cancelled());
        drop(exclusion.operation().await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_gc_runs_at_a_time() {
        let exclusion = Arc::new(Exclusion::default());
        let _first = endless(&exclusion).await;
        let second = exclusion.alone(PATIENCE, async { 7 }).await;
        assert_eq!(second, Err(Busy::NoMoment));
    }
}
