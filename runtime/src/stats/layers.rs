//! Disk usage of writable layers (CRI-155). Counting one is a walk over its files, so it is done in the
//! background and kept.
//!
//! ```text
//!   unknown ──asked──► counting ──► known ──asked, older than FRESH──► counting (the old is told)
//!                         └─ it is gone: unknown         known ──not asked for KEPT──► unknown
//! ```
//! A list waits only for layers nobody has counted before, and for those no longer than `FIRST`. A count that had to end
//! early replaces a figure only by a larger one, so that no container gets smaller by making itself hard to count; and a
//! slow one is not begun again before ten times its duration, so that others have their turns.

use super::reading::LayerUsage;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

/// How long a count is told before the layer is counted again.
const FRESH: Duration = Duration::from_secs(10);
/// How many times as long as a count took it is reported at least.
const SLOW: u32 = 10;
/// How long a count is remembered after the last question.
const KEPT: Duration = Duration::from_secs(600);
/// How long an answer waits for layers that were never counted.
const FIRST: Duration = Duration::from_millis(50);
/// Layers that are counted again at a time, and others that are counted for the first: walking is for idle disks.
const WALKS: usize = 1;

/// The counts by container id. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Layers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    known: Mutex<HashMap<String, Known>>,
    first: Semaphore,
    again: Semaphore,
}

#[derive(Debug)]
struct Known {
    usage: Option<LayerUsage>,
    /// When it is to be counted again; `None` for one that has not been counted.
    fresh_until: Option<Instant>,
    asked: Instant,
    /// A task of ours is to count it: no second one is started.
    counting: bool,
}

impl Default for Layers {
    fn default() -> Self {
        Self(Arc::new(Shared {
            known: Mutex::default(),
            first: Semaphore::new(WALKS),
            again: Semaphore::new(WALKS),
        }))
    }
}

impl Layers {
    /// Disk usage of these containers' layers, as known. `count` walks one; `None` says that it is gone.
    pub async fn usage<C, F>(&self, ids: &[String], count: C) -> HashMap<String, LayerUsage>
    where
        C: Fn(String) -> F + Send + Sync + 'static,
        F: Future<Output = Option<LayerUsage>> + Send,
    {
        let Due { never, again } = self.due(ids);
        let (layers, (counted, wait)) = (self.clone(), oneshot::channel());
        let unknown = !never.is_empty();
        if unknown || !again.is_empty() {
            tokio::spawn(async move {
                layers.count(&layers.0.first, never, &count).await;
                // Whoever asked may have waited long enough.
                let _ = counted.send(());
                layers.count(&layers.0.again, again, &count).await;
            });
        }
        if unknown {
            // Whether it ended in time or not: what is known by now is told.
            let _ = tokio::time::timeout(FIRST, wait).await;
        }
        let known = self.0.known.lock();
        let told = |id: &String| Some((id.clone(), known.get(id)?.usage.clone()?));
        ids.iter().filter_map(told).collect()
    }

    /// Marks what is to be counted now, and forgets what nobody asks for.
    fn due(&self, ids: &[String]) -> Due {
        let now = Instant::now();
        let mut known = self.0.known.lock();
        known.retain(|_, one| one.counting || now.duration_since(one.asked) < KEPT);
        let mut due = Due::default();
        for id in ids {
            let one = known.entry(id.clone()).or_insert_with(|| Known {
                usage: None,
                fresh_until: None,
                asked: now,
                counting: false,
            });
            one.asked = now;
            let fresh = one.fresh_until.is_some_and(|until| now < until);
            if !one.counting && !fresh {
                one.counting = true;
                match one.fresh_until {
                    None => due.never.push(id.clone()),
                    Some(_) => due.again.push(id.clone()),
                }
            }
        }
        due
    }

    async fn count<C, F>(&self, walks: &Semaphore, ids: Vec<String>, count: &C)
    where
        C: Fn(String) -> F,
        F: Future<Output = Option<LayerUsage>>,
    {
        for id in ids {
            // Never closed: the permit always comes.
            let _turn = walks.acquire().await;
            let begun = Instant::now();
            let usage = count(id.clone()).await;
            let mut known = self.0.known.lock();
            match (usage, known.get_mut(&id)) {
                (Some(usage), Some(one)) => {
                    one.take(&id, usage);
                    one.fresh_until = Some(begun + FRESH.max(begun.elapsed() * SLOW));
                    one.counting = false;
                }
                _ => drop(known.remove(&id)),
            }
        }
    }
}

impl Known {
    fn take(&mut self, id: &str, new: LayerUsage) {
        let was_whole = self.usage.as_ref().is_none_or(|known| known.is_whole);
        if was_whole && !new.is_whole {
            let (bytes, inodes) = (new.used_bytes, new.inodes_used);
            tracing::warn!(
                container = id,
                bytes,
                inodes,
                "its writable layer is not counted to its end: too many entries, too deep, too slow, or moved meanwhile; the larger of this and the last figure is shown"
            );
        }
        let known = self.usage.get_or_insert_with(|| new.clone());
        *known = match new.is_whole {
            true => new,
            false => LayerUsage {
                used_bytes: new.used_bytes.max(known.used_bytes),
                inodes_used: new.inodes_used.max(known.inodes_used),
                ..new
            },
        };
    }
}

/// What [`Layers::due`] found.
#[derive(Default)]
struct Due {
    /// Never counted, or so long ago that it is forgotten.
    never: Vec<String>,
    again: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts how often it is asked, and says that as the size.
    fn counter() -> (
        Arc<AtomicU64>,
        impl Fn(String) -> Counted + Send + Clone + 'static,
    ) {
        let walks = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&walks);
        let walk = move |id: String| {
            let used_bytes = count.fetch_add(1, Ordering::SeqCst) + 1;
            std::future::ready((id != "gone").then(|| LayerUsage {
                used_bytes,
                is_whole: true,
                ..LayerUsage::default()
            }))
        };
        (walks, walk)
    }

    type Counted = std::future::Ready<Option<LayerUsage>>;

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_layer_is_counted_once_in_ten_seconds_however_often_it_is_asked_for() {
        let (layers, (walks, walk)) = (Layers::default(), counter());
        for _ in 0..3 {
            let told = layers.usage(&ids(&["a"]), walk.clone()).await;
            assert_eq!(told["a"].used_bytes, 1);
        }
        tokio::time::advance(FRESH).await;
        // The old count is told while the new one is made.
        let told = layers.usage(&ids(&["a"]), walk.clone()).await;
        assert_eq!(told["a"].used_bytes, 1);
        while layers.0.known.lock()["a"].counting {
            tokio::task::yield_now().await;
        }
        let told = layers.usage(&ids(&["a"]), walk).await;
        assert_eq!(told["a"].used_bytes, 2);
        assert_eq!(walks.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_layer_that_is_gone_is_left_out_and_forgotten() {
        let (layers, (_, walk)) = (Layers::default(), counter());
        let told = layers.usage(&ids(&["gone", "a"]), walk).await;
        assert_eq!(told.keys().collect::<Vec<_>>(), ["a"]);
        assert!(!layers.0.known.lock().contains_key("gone"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_walk_without_end_holds_up_no_answer() {
        let layers = Layers::default();
        let begun = Instant::now();
        let told = layers
            .usage(&ids(&["endless"]), |_| std::future::pending())
            .await;
        assert!(told.is_empty());
        assert_eq!(begun.elapsed(), FIRST);
        let again = layers
            .usage(&ids(&["endless"]), |_| std::future::pending())
            .await;
        assert!(again.is_empty());
        assert_eq!(begun.elapsed(), FIRST, "it is being counted already");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_layer_does_not_wait_for_those_that_are_counted_again() {
        let (layers, (_, walk)) = (Layers::default(), counter());
        layers.usage(&ids(&["a"]), walk).await;
        tokio::time::advance(FRESH).await;
        let begun = Instant::now();
        let endless = |id: String| async move {
            if id == "a" {
                std::future::pending::<()>().await;
            }
            Some(LayerUsage::default())
        };
        let told = layers.usage(&ids(&["a", "new"]), endless).await;
        assert!(told.contains_key("new"));
        let told = layers.usage(&ids(&["a", "newer"]), endless).await;
        assert!(told.contains_key("newer"));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_ended_early_makes_no_layer_smaller_and_a_slow_one_waits() {
        let layers = Layers::default();
        let count = |bytes: u64, is_whole: bool| {
            move |_: String| async move {
                tokio::time::sleep(Duration::from_secs(20)).await;
                Some(LayerUsage {
                    used_bytes: bytes,
                    is_whole,
                    ..LayerUsage::default()
                })
            }
        };
        let told = async |bytes, is_whole| {
            layers.usage(&ids(&["a"]), count(bytes, is_whole)).await;
            tokio::time::sleep(Duration::from_secs(21)).await;
            let told = layers.usage(&ids(&["a"]), count(0, true)).await;
            told["a"].used_bytes
        };
        assert_eq!(told(7, true).await, 7);
        assert_eq!(told(9, true).await, 7, "it took too long to begin again");
        for (bytes, is_whole, shown) in [(3, false, 7), (8, false, 8), (5, true, 5)] {
            tokio::time::advance(Duration::from_secs(200)).await;
            assert_eq!(told(bytes, is_whole).await, shown);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_is_forgotten() {
        let (layers, (_, walk)) = (Layers::default(), counter());
        layers.usage(&ids(&["a"]), walk.clone()).await;
        tokio::time::advance(KEPT).await;
        layers.usage(&ids(&["b"]), walk).await;
        assert!(!layers.0.known.lock().contains_key("a"));
    }
}
