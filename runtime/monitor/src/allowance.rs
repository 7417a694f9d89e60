//! The CPU time that the monitor may spend on the output of its container.
//!
//! Output costs the container little and the monitor much: 64 KiB of newlines become 2.7 MB of log
//! records. So a bucket fills at the rate of the container's CPU limit, and the monitor takes from
//! it the time that it spent. While the bucket is overdrawn, no output is read: the container waits
//! at its full pipe, and nothing is lost. Without a CPU limit, output is not bounded.
//!
//! Pure: the caller passes the time and the costs.

use std::time::{Duration, Instant};

/// The bucket has room for this much time at the rate of the limit, as one period of the kernel's
/// limit. The debt is limited too, so that a pause is short.
const ROOM: Duration = Duration::from_millis(100);
const DEBT: Duration = Duration::from_secs(1);
/// How long a limit counts before it is read again.
const FRESH: Duration = Duration::from_secs(1);
/// Of this much the monitor takes nine parts: its bucket's room is used beside the rate.
const PARTS: u64 = 10;

pub(crate) struct Allowance {
    /// Nanoseconds per millisecond of wall time: millionths of a processor. None: no limit.
    rate: Option<u64>,
    read: Option<Instant>,
    /// Nanoseconds; negative is debt.
    balance: i64,
    at: Instant,
    /// The end of the debt, if there is one.
    pause: Option<Instant>,
}

impl Allowance {
    pub(crate) fn new(now: Instant) -> Allowance {
        Allowance {
            rate: None,
            read: None,
            balance: 0,
            at: now,
            pause: None,
        }
    }

    /// Whether the limit must be read.
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        self.read.is_none_or(|at| at + FRESH <= now)
    }

    /// The container's CPU limit, in millionths of a processor.
    pub(crate) fn set_limit(&mut self, limit: Option<u64>, now: Instant) {
        self.fill(now);
        let is_first = self.rate.is_none();
        self.read = Some(now);
        self.rate = limit.map(|limit| (limit * (PARTS - 1) / PARTS).max(1));
        let room = self.worth(ROOM);
        self.balance = if is_first {
            room
        } else {
            self.balance.min(room)
        };
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// Takes the cost of output from the bucket.
    pub(crate) fn charge(&mut self, cost: Duration, now: Instant) {
        self.fill(now);
        let Some(rate) = self.rate else {
            return self.pause = None;
        };
        let cost = i64::try_from(cost.as_nanos()).unwrap_or(i64::MAX);
        self.balance = self.balance.saturating_sub(cost).max(-self.worth(DEBT));
        let debt = self.balance.min(0).unsigned_abs();
        self.pause = (debt > 0).then(|| now + Duration::from_micros(debt * 1000 / rate));
    }

    /// When output is read again; none if it is read now.
    pub(crate) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.pause.filter(|until| *until > now)
    }

    /// The part of `most` bytes to read at once, so that debts stay small beside a low limit.
    pub(crate) fn chunk(&self, most: usize) -> usize {
        /// From a hundredth of a processor on, all of it.
        const ALL: u64 = 10_000;
        const LEAST: usize = 512;
        let part = self.rate.map_or(ALL, |rate| rate.min(ALL)) as usize;
        (most * part / ALL as usize).max(LEAST.min(most))
    }

    fn fill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        let filled = self.balance.saturating_add(self.worth(elapsed));
        self.balance = filled.min(self.worth(ROOM));
    }

    /// Nanoseconds that the bucket gets in this time.
    fn worth(&self, time: Duration) -> i64 {
        let worth = time.as_nanos() * u128::from(self.rate.unwrap_or(0)) / 1_000_000;
        i64::try_from(worth).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUNDREDTH: u64 = 10_000;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// The CPU time of a monitor whose container always has output, at this cost per read.
    fn spend(allowance: &mut Allowance, from: Instant, time: Duration, cost: Duration) -> Duration {
        let (mut now, mut spent) = (from, Duration::ZERO);
        while now < from + time {
            if let Some(until) = allowance.paused_until(now) {
                now = until;
                continue;
            }
            now += cost;
            spent += cost;
            allowance.charge(cost, now);
        }
        spent
    }

    #[test]
    fn a_flood_gets_no_more_than_the_containers_limit() {
        let start = Instant::now();
        for (cost, limit) in [
            (ms(2), HUNDREDTH),
            (Duration::from_micros(20), HUNDREDTH),
            (ms(1), 500_000),
            (Duration::from_micros(200), 1000),
        ] {
            let mut allowance = Allowance::new(start);
            allowance.set_limit(Some(limit), start);
            let spent = spend(&mut allowance, start, ms(4000), cost);
            let own = ms(4) * limit as u32 / 1000;
            assert!(spent <= own + cost, "{spent:?} of {own:?} at {cost:?}");
            assert!(spent >= own * 8 / 10, "{spent:?} of {own:?} at {cost:?}");
        }
    }

    #[test]
    fn without_a_limit_and_with_one_of_many_processors_nothing_waits() {
        let start = Instant::now();
        for limit in [None, Some(2_000_000)] {
            let mut allowance = Allowance::new(start);
            allowance.set_limit(limit, start);
            assert_eq!(spend(&mut allowance, start, ms(4000), ms(2)), ms(4000));
        }
    }

    #[test]
    fn output_below_the_limit_does_not_wait() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        allowance.set_limit(Some(HUNDREDTH), start);
        // 20 lines at once, then one each 10 ms, at 30 us each.
        for n in 0..1000 {
            let now = start + ms(10) * n;
            let lines = if n == 0 { 20 } else { 1 };
            allowance.charge(Duration::from_micros(30) * lines, now);
            assert_eq!(allowance.paused_until(now), None);
        }
    }

    #[test]
    fn time_without_output_is_saved_up_to_the_room_of_the_bucket() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        allowance.set_limit(Some(HUNDREDTH), start);
        let later = start + ms(3_600_000);
        // 0.9 ms saved; 9 us come in each millisecond.
        allowance.charge(Duration::from_micros(900), later);
        assert_eq!(allowance.paused_until(later), None);
        allowance.charge(Duration::from_micros(90), later);
        assert_eq!(allowance.paused_until(later), Some(later + ms(10)));
        assert_eq!(allowance.paused_until(later + ms(10)), None);
    }

    #[test]
    fn a_pause_is_short_whatever_one_read_cost() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        allowance.set_limit(Some(1000), start);
        allowance.charge(ms(60_000), start);
        let until = allowance.paused_until(start).expect("a pause");
        assert!(until <= start + DEBT + ms(1));
    }

    #[test]
    fn a_new_limit_counts_from_when_it_is_read() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        assert!(allowance.is_stale(start) && !allowance.is_limited());
        allowance.set_limit(Some(HUNDREDTH), start);
        assert!(allowance.is_limited() && !allowance.is_stale(start + ms(999)));
        allowance.charge(ms(9), start);
        let then = start + ms(1000);
        assert!(allowance.is_stale(then));
        // What was saved under a high limit is not kept under a low one.
        allowance.set_limit(Some(1_000_000), then);
        allowance.charge(Duration::ZERO, then + ms(1000));
        allowance.set_limit(Some(HUNDREDTH), then + ms(1000));
        allowance.charge(ms(1), then + ms(1000));
        assert!(allowance.paused_until(then + ms(1000)).is_some());
        // Without a limit nothing waits, not even for an old debt.
        allowance.set_limit(None, then + ms(1001));
        allowance.charge(ms(1), then + ms(1001));
        assert_eq!(allowance.paused_until(then + ms(1001)), None);
    }

    #[test]
    fn the_lower_the_limit_the_less_is_read_at_once() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        assert_eq!(allowance.chunk(32 << 10), 32 << 10);
        for (limit, bytes) in [(1_000_000, 32768), (20_000, 32768), (5000, 14745), (1, 512)] {
            allowance.set_limit(Some(limit), start);
            assert_eq!(allowance.chunk(32 << 10), bytes);
        }
    }

    #[test]
    fn a_clock_that_stands_still_or_a_late_event_changes_nothing() {
        let start = Instant::now() + ms(10);
        let mut allowance = Allowance::new(start);
        allowance.set_limit(Some(HUNDREDTH), start);
        allowance.charge(Duration::from_micros(900), start);
        allowance.charge(Duration::ZERO, start - ms(10));
        assert_eq!(allowance.paused_until(start), None);
        allowance.charge(Duration::from_micros(9), start);
        assert!(allowance.paused_until(start).is_some());
    }
}
