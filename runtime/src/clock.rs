//! The only reader of the time of day, and a conversion of durations.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// The last time that was given, and when.
struct Last {
    time: i64,
    at: Option<Instant>,
}

static LAST: Mutex<Last> = Mutex::new(Last { time: 0, at: None });

impl Last {
    /// The next time. Where the time of day was set back, time goes on from the last one at half
    /// its pace, until the time of day has caught up.
    fn next(&mut self, time_of_day: i64, at: Instant) -> i64 {
        let since = self
            .at
            .map_or(Duration::ZERO, |last| at.duration_since(last));
        let since = i64::try_from(since.as_nanos() / 2).unwrap_or(i64::MAX);
        let time = time_of_day.max(self.time.saturating_add(since.max(1)));
        *self = Self { time, at: Some(at) };
        time
    }
}

/// Nanoseconds since the epoch, strictly increasing, so that `created_at` follows the order of
/// creation (CRI-102) and samples advance (CRI-153).
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now_ns() -> i64 {
    let time_of_day = SystemTime::now().duration_since(UNIX_EPOCH);
    let time_of_day = time_of_day.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    });
    let mut last = LAST.lock();
    // Read in the lock, so that no caller has an older one.
    last.next(time_of_day, Instant::now())
}

/// All times from now on are later than this one, of an earlier daemon.
pub fn go_on_from(time: i64) {
    let mut last = LAST.lock();
    if time > last.time {
        *last = Last {
            time,
            at: Some(Instant::now()),
        };
    }
}

/// A duration for events, spans and messages.
pub fn nanoseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_stands_still() {
        let times: Vec<_> = (0..1000).map(|_| now_ns()).collect();
        assert!(times.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn time_goes_on_slowly_where_the_time_of_day_was_set_back() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        const S: i64 = 1_000_000_000;
        let mut last = Last { time: 0, at: None };
        assert_eq!(last.next(7000 * S, after(0)), 7000 * S);
        assert_eq!(last.next(3400 * S, after(6)), 7003 * S);
        assert_eq!(last.next(3400 * S, after(6)), 7003 * S + 1);
        assert_eq!(last.next(7010 * S, after(7)), 7010 * S);
    }
}
