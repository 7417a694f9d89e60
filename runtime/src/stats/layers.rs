//! Disk usage of writable layers (CRI-155). A count walks a whole layer, in the background.
//!
//! ```text
//!   unknown ──asked──► counting ──► known ──asked, older than FRESH──► counting (reports the old)
//!                         └─ layer removed: unknown     known ──not asked for KEPT──► unknown
//! ```
//! A list waits only for layers without a count, at most `FIRST`. An incomplete count replaces only
//! a smaller figure: a container cannot lower its usage by making the count slow. A slow count
//! waits ten times its duration before the next, so that others get their turns.

use super::reading::LayerUsage;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

/// Age at which a layer is counted again.
const FRESH: Duration = Duration::from_secs(10);
/// A count stays fresh for this multiple of its duration.
const SLOW: u32 = 10;
/// How long an unused count is kept.
const KEPT: Duration = Duration::from_secs(600);
/// How long an answer waits for first counts.
const FIRST: Duration = Duration::from_millis(50);
/// Concurrent recounts, and concurrent first counts: walking is for idle disks.
const WALKS: usize = 1;

/// The counts by container id. Clones share them.
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
    /// When to count again; `None` before the first count.
    fresh_until: Option<Instant>,
    asked: Instant,
    /// A task is counting it.
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
    /// Known disk usage of these containers' layers. `count` walks one; `None` if removed.
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
                // The caller may have stopped waiting.
                let _ = counted.send(());
                layers.count(&layers.0.again, again, &count).await;
            });
        }
        if unknown {
            // On a timeout, report the counts known so far.
            let _ = tokio::time::timeout(FIRST, wait).await;
        }
        let known = self.0.known.lock();
        let usage_of = |id: &String| Some((id.clone(), known.get(id)?.usage.clone()?));
        ids.iter().filter_map(usage_of).collect()
    }

    /// Marks the layers to count now, and drops unused counts.
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
            // The semaphore is never closed.
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
        let was_complete = self.usage.as_ref().is_none_or(|known| known.is_whole);
        if was_complete && !new.is_whole {
            let (bytes, inodes) = (new.used_bytes, new.inodes_used);
            tracing::warn!(
                container = id,
                bytes,
                inodes,
                "writable layer not fully counted: too many entries, too deep, too slow, or moved; reporting the larger of this and the last figure"
            );
        }
        let known = self.usage.get_or_insert_with(|| new.clone());
        *known = if new.is_whole {
            new
        } else {
            LayerUsage {
                used_bytes: new.used_bytes.max(known.used_bytes),
                inodes_used: new.inodes_used.max(known.inodes_used),
                ..new
            }
        };
    }
}

/// The layers that [`Layers::due`] found.
#[derive(Default)]
struct Due {
    /// Never counted, or forgotten.
    never: Vec<String>,
    again: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Returns the number of walks so far as the size.
    fn counter() -> (
        Arc<AtomicU64>,
        impl Fn(String) -> Counted + Send + Clone + 'static,
    ) {
        let walks = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&walks);
        let walk = move |id: String| {
            let used_bytes = count.fetch_add(1, Ordering::SeqCst) + 1;
            std::future::ready((id != "removed").then(|| LayerUsage {
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
            let usage = layers.usage(&ids(&["a"]), walk.clone()).await;
            assert_eq!(usage["a"].used_bytes, 1);
        }
        tokio::time::advance(FRESH).await;
        // The old count is reported during the new one.
        let usage = layers.usage(&ids(&["a"]), walk.clone()).await;
        assert_eq!(usage["a"].used_bytes, 1);
        while layers.0.known.lock()["a"].counting {
            tokio::task::yield_now().await;
        }
        let usage = layers.usage(&ids(&["a"]), walk).await;
        assert_eq!(usage["a"].used_bytes, 2);
        assert_eq!(walks.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_layer_is_left_out_and_forgotten() {
        let (layers, (_, walk)) = (Layers::default(), counter());
        let usage = layers.usage(&ids(&["removed", "a"]), walk).await;
        assert_eq!(usage.keys().collect::<Vec<_>>(), ["a"]);
        assert!(!layers.0.known.lock().contains_key("removed"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_walk_without_end_delays_no_answer() {
        let layers = Layers::default();
        let begun = Instant::now();
        let usage = layers
            .usage(&ids(&["endless"]), |_| std::future::pending())
            .await;
        assert!(usage.is_empty());
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
        let usage = layers.usage(&ids(&["a", "new"]), endless).await;
        assert!(usage.contains_key("new"));
        let usage = layers.usage(&ids(&["a", "newer"]), endless).await;
        assert!(usage.contains_key("newer"));
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
        let reported = async |bytes, is_whole| {
            layers.usage(&ids(&["a"]), count(bytes, is_whole)).await;
            tokio::time::sleep(Duration::from_secs(21)).await;
            let usage = layers.usage(&ids(&["a"]), count(0, true)).await;
            usage["a"].used_bytes
        };
        assert_eq!(reported(7, true).await, 7);
        assert_eq!(
            reported(9, true).await,
            7,
            "it took too long to begin again"
        );
        for (bytes, is_whole, shown) in [(3, false, 7), (8, false, 8), (5, true, 5)] {
            tokio::time::advance(Duration::from_secs(200)).await;
            assert_eq!(reported(bytes, is_whole).await, shown);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_count_is_forgotten() {
        let (layers, (_, walk)) = (Layers::default(), counter());
        layers.usage(&ids(&["a"]), walk.clone()).await;
        tokio::time::advance(KEPT).await;
        layers.usage(&ids(&["b"]), walk).await;
        assert!(!layers.0.known.lock().contains_key("a"));
    }
}
