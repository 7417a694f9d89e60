//! Limits of the time of calls, in the model's time: what may wait for whom, by the hazards of the
//! plan.

use std::time::Duration;

use crate::{
    memory::DEL,
    plan::{Hazard, Plan},
};

/// No call takes longer.
pub(crate) const CALL: Duration = Duration::from_secs(600);
/// From the start of the daemon until it serves.
pub(crate) const RECOVERY: Duration = Duration::from_secs(1);
/// From the end of a process until its record.
pub(crate) const EXIT: Duration = Duration::from_secs(5);
/// The writes of a holder of the NRI turn: those of other containers, then its own.
const WRITES: Duration = Duration::from_secs(10);
/// The time limit of a plugin's answer.
const REQUEST: Duration = Duration::from_secs(2);
/// A stop without its grace period, where no plugin, kernel or agent is slow: a start is abandoned
/// after 3 s, a monitor after 10 s, a process and its cgroup each after 5 s.
const STOP: Duration = Duration::from_secs(25);

impl Plan {
    /// How long one operation may hold the NRI turn.
    pub(crate) fn turn(&self) -> Duration {
        let outside = self.plugins.iter().filter(|plugin| !plugin.in_process);
        let plugins = u32::try_from(outside.count()).expect("a few");
        plugins * REQUEST + 2 * WRITES + Duration::from_secs(1)
    }

    /// A stop of a container or a pod.
    pub(crate) fn stop(&self, grace: Duration) -> Duration {
        let slow = self.has(Hazard::Writes) || self.plugins.iter().any(|plugin| plugin.late > 0);
        // Every other container may hold the turn once before it, and its own update.
        let containers = u32::try_from(self.clients * 3 + 2).expect("a few");
        let turns = u32::from(slow) * containers * self.turn();
        // Then the stop fails; the next one is another call.
        let network = u32::from(self.has(Hazard::Dels)) * DEL;
        grace + STOP + turns + network
    }
}
