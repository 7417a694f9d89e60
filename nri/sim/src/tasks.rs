//! Tasks that become ready in the order of a seed. Each belongs to a group that can be killed.
//!
//! The state belongs to the thread that called [`begin`]; tasks of other threads run as without the
//! feature.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    task::{AbortHandle, JoinHandle},
    time::Instant,
};

use super::rng::Rng;

/// A group of tasks that end together, such as one daemon's.
pub type Group = u32;

type Key = (Group, u64);

struct Tasks {
    rng: Rng,
    current: Group,
    last: u64,
    live: BTreeMap<Key, AbortHandle>,
    ended: BTreeSet<Group>,
    /// The number of polls at the current moment of the clock.
    polls: (Option<Instant>, u64),
}

/// The limit of polls without passing time: tasks above it never end.
const MAX_POLLS: u64 = 2_000_000;

/// The moment at which a polled task continues.
enum Next {
    Now,
    Later,
    Never,
}

impl Tasks {
    fn next(&mut self) -> Next {
        let now = Some(Instant::now());
        let (at, polls) = &mut self.polls;
        if *polls > MAX_POLLS {
            return Next::Never;
        }
        *polls = if *at == now { *polls + 1 } else { 0 };
        *at = now;
        if self.rng.once_in(3) {
            Next::Later
        } else {
            Next::Now
        }
    }
}

thread_local! {
    static TASKS: RefCell<Option<Tasks>> = const { RefCell::new(None) };
}

fn with<T>(act: impl FnOnce(&mut Tasks) -> T) -> Option<T> {
    TASKS.with_borrow_mut(|tasks| tasks.as_mut().map(act))
}

/// Runs the tasks of this thread by `seed` from now on.
pub fn begin(seed: u64) {
    TASKS.set(Some(Tasks {
        rng: Rng::new(seed),
        current: 0,
        last: 0,
        live: BTreeMap::new(),
        ended: BTreeSet::new(),
        polls: (None, 0),
    }));
}

/// Spawns a task of `group`; tasks that it spawns belong to the group, too.
pub fn spawn_in(group: Group, task: impl Future<Output = ()> + Send + 'static) {
    within(group, || drop(spawn(task)));
}

/// Calls `act` as part of a group.
pub fn within<T>(group: Group, act: impl FnOnce() -> T) -> T {
    inside(Some(group), act)
}

/// Whether tasks reached the limit of polls without passing time. No task continues after that.
pub fn is_stuck() -> bool {
    with(|tasks| tasks.polls.1 > MAX_POLLS).unwrap_or_default()
}

/// Returns the number of live tasks of a group.
pub fn live(group: Group) -> usize {
    with(|tasks| tasks.live.keys().filter(|key| key.0 == group).count()).unwrap_or_default()
}

/// Ends all tasks of a group at their current point, as `kill -9` does. The group starts no further
/// task.
pub fn kill(group: Group) {
    let tasks = with(|tasks| {
        tasks.ended.insert(group);
        let of = tasks.live.iter().filter(|(key, _)| key.0 == group);
        of.map(|(_, task)| task.clone()).collect::<Vec<_>>()
    });
    let tasks = tasks.unwrap_or_default();
    tasks.iter().for_each(AbortHandle::abort);
}

fn inside<T>(group: Option<Group>, act: impl FnOnce() -> T) -> T {
    let Some(group) = group else {
        return act();
    };
    let before = with(|tasks| std::mem::replace(&mut tasks.current, group));
    let done = act();
    with(|tasks| tasks.current = before.unwrap_or_default());
    done
}

/// A task that is sometimes delayed although it could continue.
struct Tracked<F> {
    task: Option<Pin<Box<F>>>,
    key: Option<Key>,
}

/// As `tokio::spawn`, in the order of the seed.
pub fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let key = with(|tasks| {
        tasks.last += 1;
        (tasks.current, tasks.last)
    });
    let task = Some(Box::pin(task));
    #[expect(clippy::disallowed_methods, reason = "as rt.rs, which this replaces")]
    let spawned = tokio::spawn(Tracked { task, key });
    let dead = key.and_then(|key| {
        with(|tasks| {
            tasks.live.insert(key, spawned.abort_handle());
            tasks.ended.contains(&key.0)
        })
    });
    if dead == Some(true) {
        spawned.abort();
    }
    spawned
}

impl<F: Future> Future for Tracked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let group = self.key.map(|key| key.0);
        match with(Tasks::next) {
            Some(Next::Later) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(Next::Never) => return Poll::Pending,
            Some(Next::Now) | None => {}
        }
        inside(group, || match &mut self.task {
            Some(task) => task.as_mut().poll(cx),
            None => Poll::Pending,
        })
    }
}

impl<F> Drop for Tracked<F> {
    fn drop(&mut self) {
        let group = self.key.map(|key| key.0);
        inside(group, || self.task = None);
        if let Some(key) = self.key {
            with(|tasks| tasks.live.remove(&key));
        }
    }
}
