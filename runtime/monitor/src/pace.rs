//! Applies the allowance (`allowance.rs`): measures the CPU time of output, and reads the limit.
//!
//! The monitor has one thread. All its time between two events counts for the later one, so that
//! waking up for output is a cost of output.

use std::time::{Duration, Instant};

use cairn_monitor::cgroup::Cgroups;
use cairn_monitor::sys;

use crate::allowance::Allowance;

pub(crate) struct Pace {
    allowance: Allowance,
    /// The CPU time of this process up to here is accounted for.
    counted: Duration,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace {
            allowance: Allowance::new(Instant::now()),
            counted: Duration::ZERO,
        }
    }

    /// When output is read again; none if it is read now.
    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.allowance.paused_until(Instant::now())
    }

    /// As [`Allowance::chunk`].
    pub(crate) fn chunk(&self, most: usize) -> usize {
        self.allowance.chunk(most)
    }

    /// Charges the time since the last event to output.
    pub(crate) fn charge(&mut self, cgroups: &Cgroups) {
        let now = Instant::now();
        // Before the limit was known, nothing was counted.
        let was_counted = self.allowance.is_limited();
        if self.allowance.is_stale(now) {
            // An update of the container's resources writes only its cgroup.
            self.allowance.set_limit(cgroups.cpu_limit(), now);
        }
        let before = self.counted;
        self.skip();
        if was_counted {
            let cost = self.counted.saturating_sub(before);
            self.allowance.charge(cost, now);
        }
    }

    /// Charges the time since the last event to nothing.
    pub(crate) fn skip(&mut self) {
        if self.allowance.is_limited() {
            self.counted = sys::cpu_time();
        }
    }
}
