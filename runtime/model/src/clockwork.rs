//! A runtime of one thread that can be stopped between any two polls of its tasks. Its clock
//! advances only when no task can run.
//!
//! The root future wakes itself, to be polled after each task (`event_interval` is 1). A second
//! task, the sentinel, is always queued. When root and sentinel alone have run for two rounds, no
//! other task can run, and the events of sockets have arrived. Then both wait until the paused
//! clock advances.

use std::{
    cell::RefCell,
    future::poll_fn,
    pin::pin,
    task::{Poll, Waker},
};

use tokio::{runtime::Builder, time::Instant};

/// Polls of the root and of the sentinel.
#[derive(Default)]
struct Turns {
    root: u64,
    sentinel: u64,
    /// The root's count at the sentinel's last poll.
    last: u64,
    alone: u32,
    resting: Option<Instant>,
    wakers: [Option<Waker>; 2],
}

thread_local! {
    static TURNS: RefCell<Turns> = RefCell::default();
}

/// The result of a run, and its number of polls.
pub(crate) struct Ran<T> {
    /// `None`: it was killed.
    pub result: Option<T>,
    pub polls: u64,
}

/// Runs a future as a task, and drops the runtime after this many polls of tasks.
pub(crate) fn run<T: Send + 'static>(
    kill_after: Option<u64>,
    work: impl Future<Output = T> + Send + 'static,
) -> Ran<T> {
    TURNS.take();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .event_interval(1)
        .on_thread_unpark(go_on)
        .build()
        .expect("a runtime");
    let mut polls = 0;
    let result = runtime.block_on(async {
        tokio::spawn(sentinel());
        let mut work = pin!(tokio::spawn(work));
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done.expect("the model panicked")));
            }
            TURNS.with_borrow_mut(|turns| {
                turns.root += 1;
                polls = turns.root - turns.sentinel;
                match turns.resting {
                    None => cx.waker().wake_by_ref(),
                    Some(_) => turns.wakers[0] = Some(cx.waker().clone()),
                }
            });
            match kill_after {
                Some(after) if polls > after => Poll::Ready(None),
                _ => Poll::Pending,
            }
        })
        .await
    });
    drop(runtime);
    Ran { result, polls }
}

async fn sentinel() {
    poll_fn(|cx| {
        TURNS.with_borrow_mut(|turns| {
            turns.sentinel += 1;
            turns.alone = match turns.root - turns.last {
                0..=1 => turns.alone + 1,
                _ => 0,
            };
            turns.last = turns.root;
            if turns.alone < 2 {
                cx.waker().wake_by_ref();
            } else {
                turns.alone = 0;
                turns.resting = Some(Instant::now());
                turns.wakers[1] = Some(cx.waker().clone());
            }
        });
        Poll::Pending
    })
    .await
}

/// Called after each wait of the runtime.
fn go_on() {
    let woken = TURNS.with_borrow_mut(|turns| {
        turns.resting.take_if(|since| Instant::now() > *since)?;
        Some(std::mem::take(&mut turns.wakers))
    });
    for waker in woken.into_iter().flatten().flatten() {
        waker.wake();
    }
}
