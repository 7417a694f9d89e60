//! Rate limits of unsolicited requests. Updates above the rate are delayed, connections are closed.
//!
//! | work | per | rate | burst |
//! |---|---|---|---|
//! | updates and evictions | plugin, over all its connections | 100/s | 500: a large node |
//! | connections | process | 200/s | 1000 |
//! | reports of closed connections | process | 1/s | 1 |

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::plugin_id::PluginId;

/// Updates of a call that are applied before it waits.
pub(crate) const PART: usize = 50;

pub(crate) const CONNECTIONS_PER_SECOND: u32 = 200;

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

/// By the pid of the peer, where it is known.
impl Pace<Option<u32>> {
    pub(crate) fn of_connections() -> Self {
        Self::new(CONNECTIONS_PER_SECOND, 1000)
    }

    pub(crate) fn of_reports() -> Self {
        Self::new(1, 1)
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

    /// Takes one unit if the key has earned it.
    pub(crate) fn try_take(&self, key: &K) -> bool {
        let now = Instant::now();
        let mut all = self.earned.lock();
        all.retain(|_, earned| *earned > now);
        let earned = *all.get(key).unwrap_or(&now) + self.each;
        let is_earned = earned.duration_since(now) <= self.each * self.burst;
        if is_earned {
            all.insert(key.clone(), earned);
        }
        is_earned
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

    #[tokio::test(start_paused = true)]
    async fn connections_beyond_the_rate_of_a_process_take_nothing_from_another() {
        let pace = Pace::of_connections();
        let taken = |pid| (0..3000).filter(|_| pace.try_take(&Some(pid))).count();
        assert_eq!(taken(1), 1000);
        assert_eq!(taken(1), 0);
        assert_eq!(taken(2), 1000);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(taken(1), 200);
        let reports = Pace::of_reports();
        let shown = || (reports.try_take(&Some(1)), reports.try_take(&Some(1)));
        assert_eq!(shown(), (true, false));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(shown(), (true, false));
        assert!(reports.try_take(&None));
    }
}
