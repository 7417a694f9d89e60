//! The only reader of the time of day, and a conversion of durations.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

static LAST: AtomicI64 = AtomicI64::new(0);

/// Nanoseconds since the epoch, strictly increasing, so that `created_at` follows the order of
/// creation (CRI-102) and samples advance (CRI-153).
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now_ns() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
        });
    let mut last = LAST.load(Ordering::Relaxed);
    loop {
        let next = now.max(last + 1);
        match LAST.compare_exchange_weak(last, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return next,
            Err(seen) => last = seen,
        }
    }
}

/// A duration for events, spans and messages.
pub fn nanoseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_never_stands_still() {
        let times: Vec<_> = (0..1000).map(|_| super::now_ns()).collect();
        assert!(times.is_sorted_by(|a, b| a < b));
    }
}
