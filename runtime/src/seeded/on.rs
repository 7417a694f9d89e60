//! In seeded runs.

use std::{cell::RefCell, collections::BTreeMap, path::PathBuf, rc::Rc, time::Duration};

use futures_util::future::{BoxFuture, ready};
use tokio::{task::yield_now, time::Instant};

mod disk;
mod kernel;

pub use disk::*;
pub use kernel::*;

/// What a run makes of a place in the code (`fault.rs`).
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    Waits(Duration),
    Fails,
}

type Fates = Rc<dyn Fn(&str) -> Option<Fate>>;

/// A run, or nothing: all of it is of this thread.
#[derive(Default)]
struct Run {
    seed: Option<u64>,
    /// Closures of blocking work may run after the future that awaits them was dropped.
    outlives: bool,
    limits: BTreeMap<&'static str, usize>,
    fates: Option<Fates>,
    spans: Vec<(&'static str, Duration)>,
    /// The content of files that are not on disk, before their first change; `None`: no file.
    unsynced: BTreeMap<PathBuf, Option<Vec<u8>>>,
    kernel: BTreeMap<PathBuf, String>,
}

thread_local! {
    static RUN: RefCell<Run> = RefCell::default();
}

fn with<T>(work: impl FnOnce(&mut Run) -> T) -> T {
    RUN.with_borrow_mut(work)
}

/// Seeds this thread; `None` ends that. Forgets the run before.
pub fn begin(seed: Option<u64>) {
    RUN.set(Run {
        seed,
        ..Run::default()
    });
}

/// The next number below `below`; `None` without a seed.
pub fn draw(below: u64) -> Option<u64> {
    with(|run| {
        let state = run.seed?.wrapping_add(0x9E37_79B9_7F4A_7C15);
        run.seed = Some(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Some((z ^ (z >> 31)) % below)
    })
}

pub fn fill(bytes: &mut [u8]) -> bool {
    let drawn = bytes
        .iter_mut()
        .map(|byte| draw(256).map(|drawn| *byte = drawn as u8));
    drawn.collect::<Option<Vec<()>>>().is_some()
}

/// From now on some closures of blocking work run in a task of their own, as on a busy machine.
pub fn outlive() {
    with(|run| run.outlives = true);
}

/// Runs blocking work with turns of other tasks before and after.
///
/// # Errors
/// Without a seed: the caller runs the work.
pub fn in_line<T, W>(work: W) -> BoxFuture<'static, Result<T, W>>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    // On the heap: each caller's future would have room for it.
    match draw(3) {
        Some(turns) => Box::pin(run_in_line(work, turns)),
        None => Box::pin(ready(Err(work))),
    }
}

async fn run_in_line<T, W>(work: W, turns: u64) -> Result<T, W>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    if with(|run| run.outlives) && turns == 0 {
        let turns = draw(8).unwrap_or_default();
        let queued = tokio::spawn(async move {
            for _ in 0..=turns {
                yield_now().await;
            }
            work()
        });
        return match queued.await {
            Ok(done) => Ok(done),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
    }
    for _ in 0..=turns {
        yield_now().await;
    }
    let done = work();
    yield_now().await;
    Ok(done)
}

/// Replaces a limit from now on.
pub fn set_limit(name: &'static str, limit: usize) {
    with(|run| run.limits.insert(name, limit));
}

/// A limit by its name; `usual` if the run has no other.
pub fn limit(name: &str, usual: usize) -> usize {
    with(|run| run.limits.get(name).copied()).unwrap_or(usual)
}

/// Decides about every place from now on, with the name that `fault.rs` gets.
pub fn govern(fates: impl Fn(&str) -> Option<Fate> + 'static) {
    with(|run| run.fates = Some(Rc::new(fates)));
}

pub fn fate(place: &str) -> Option<Fate> {
    let fates = with(|run| run.fates.clone())?;
    fates(place)
}

/// A measured time: from [`Span::begin`] until it is dropped.
pub struct Span {
    what: &'static str,
    since: Instant,
}

impl Span {
    pub fn begin(what: &'static str) -> Self {
        Self {
            what,
            since: Instant::now(),
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        with(|run| {
            if run.seed.is_some() {
                run.spans.push((self.what, self.since.elapsed()));
            }
        });
    }
}

/// The times that were measured since the last call.
pub fn spans() -> Vec<(&'static str, Duration)> {
    with(|run| std::mem::take(&mut run.spans))
}
