//! Rate limits of unsolicited requests. Work above the rate is delayed, not rejected.
//!
//! | work | per | rate | burst |
//! |---|---|---|---|
//! | updates and evictions | plugin, over all its connections | 100/s | 500: a large node |
//! | connections | socket | 200/s | 1000 |

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::owners::PluginId;

/// Updates of a call that are applied before it waits.
pub(crate) const PART: usize = 50;

/// A token bucket per key. A key whose bucket is full has no entry.
pub(crate) struct Pace<K> {
    /// Time to earn one unit.
    each: Duration,
    burst: u32,
    /// Time at which the key will have earned all it has taken.
    earned: Mutex<BTreeMap<K, Instant>>,
}

impl Pace<PluginId> {
    pub(crate) fn of_updates() -> Self {
        Self::new(100, 500)
    }
}

impl Pace<()> {
    pub(crate) fn of_connections() -> Self {
        Self::new(200, 1000)
    }
}

impl<K: Ord + Clone> Pace<K> {
    fn new(per_second: u32, burst: u32) -> Self {
        let each = Duration::from_secs(1) / per_second;
        let earned = Mutex::default();
        Self {
            each,
            burst,
            earned,
        }
    }

    /// Waits until the key has earned `count` more units.
    pub(crate) async fn take(&self, key: &K, count: usize) {
        let wait = self.due(key, u32::try_from(count).unwrap_or(u32::MAX));
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    fn due(&self, key: &K, count: u32) -> Duration {
        let now = Instant::now();
        let mut all = self.earned.lock();
        all.retain(|_, earned| *earned > now);
        let earned = all.entry(key.clone()).or_insert(now);
        *earned += self.each * count;
        earned
            .duration_since(now)
            .saturating_sub(self.each * self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_free_then_each_second_has_its_share_and_plugins_do_not_share_it() {
        let (pace, begun) = (Pace::of_updates(), Instant::now());
        let [a, b] = ["10-a", "10-b"].map(|id| id.parse().unwrap());
        for _ in 0..500 {
            pace.take(&a, 1).await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        pace.take(&a, 200).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
        pace.take(&b, 500).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
        tokio::time::sleep(Duration::from_secs(5)).await;
        pace.take(&a, 500).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(7));
        assert_eq!(pace.earned.lock().len(), 1, "a full bucket has no entry");
    }
}
