//! The pace of updates that plugins send by themselves: each plugin's, whatever connection it has. What comes faster is
//! delayed, not refused: the plugin's own calls wait, and nobody else's.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::owners::PluginId;

/// Updates and evictions of one plugin per second, in the long run.
const PER_SECOND: u32 = 100;
/// As many at once where it has sent none for a while: each container of a large node.
const BURST: u32 = 500;
/// So many updates of a call are applied before it waits.
pub(crate) const PART: usize = 50;

const EACH: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND as u64);

/// By plugin: when it will have earned what it has taken. One that has earned it all is not in here.
#[derive(Default)]
pub(crate) struct Pace(Mutex<BTreeMap<PluginId, Instant>>);

impl Pace {
    /// Waits until so many more are the plugin's due.
    pub(crate) async fn take(&self, plugin: &PluginId, count: usize) {
        let wait = self.due(plugin, u32::try_from(count).unwrap_or(u32::MAX));
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    fn due(&self, plugin: &PluginId, count: u32) -> Duration {
        let now = Instant::now();
        let mut all = self.0.lock();
        all.retain(|_, earned| *earned > now);
        let earned = all.entry(plugin.clone()).or_insert(now);
        *earned += EACH * count;
        earned.duration_since(now).saturating_sub(EACH * BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_free_then_each_second_has_its_share_and_plugins_do_not_share_it() {
        let (pace, begun) = (Pace::default(), Instant::now());
        let [a, b] = ["10-a", "10-b"].map(|id| id.parse().unwrap());
        for _ in 0..BURST {
            pace.take(&a, 1).await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        pace.take(&a, 2 * PER_SECOND as usize).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
        pace.take(&b, BURST as usize).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
        tokio::time::sleep(EACH * BURST).await;
        pace.take(&a, BURST as usize).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2) + EACH * BURST);
        assert_eq!(pace.0.lock().len(), 1, "who has earned it all is forgotten");
    }
}
