//! Pure: the cpu part of a plan: shares or weight, and the bandwidth in an order that never exceeds
//! the parent's.

use super::error::Result;
use super::host::Place;
use super::plan::Plan;
use super::values::{max_or, weight_from_shares};
use oci_spec::runtime::LinuxCpu;

impl Plan<'_> {
    pub(super) fn cpu(&mut self, cpu: &LinuxCpu) -> Result<()> {
        let bare = cpu.shares().is_none()
            && cpu.quota().is_none()
            && cpu.period().is_none()
            && cpu.realtime_runtime().is_none()
            && cpu.realtime_period().is_none();
        if bare {
            return Ok(());
        }
        match self.place("cpu", "cpu limit")? {
            Place::V1(_) => self.cpu_v1(cpu),
            Place::V2(_) => self.cpu_v2(cpu),
        }
    }

    fn cpu_v1(&mut self, cpu: &LinuxCpu) -> Result<()> {
        self.set_given("cpu", "cpu.shares", cpu.shares().filter(|s| *s != 0));
        self.set_given("cpu", "cpu.rt_period_us", cpu.realtime_period());
        self.set_given("cpu", "cpu.rt_runtime_us", cpu.realtime_runtime());
        let quota = cpu.quota().filter(|q| *q != 0);
        let period = cpu.period().filter(|p| *p != 0);
        let period_first = match (quota, period) {
            (Some(quota), Some(period)) => self.period_goes_first(quota, period)?,
            _ => false,
        };
        let period_if = |first| period.filter(|_| period_first == first);
        self.set_given("cpu", "cpu.cfs_period_us", period_if(true));
        self.set_given("cpu", "cpu.cfs_quota_us", quota);
        self.set_given("cpu", "cpu.cfs_period_us", period_if(false));
        Ok(())
    }

    /// The kernel checks quota/period against the parent's at each single write. Of the two
    /// intermediate states, old quota with new period and new quota with old period, the lower
    /// ratio is at most the higher of the ratios before and after, both of which are allowed. An
    /// unlimited quota is always allowed, so that the period changes while the quota is unlimited.
    fn period_goes_first(&self, quota: i64, period: u64) -> Result<bool> {
        let now = |file| self.current_number("cpu", file);
        let Some(quota_now) = now("cpu.cfs_quota_us")? else {
            return Ok(true);
        };
        let Ok(quota) = u64::try_from(quota) else {
            return Ok(false);
        };
        let period_now = now("cpu.cfs_period_us")?.unwrap_or(100_000);
        // quota_now / period <= quota / period_now, without dividing.
        let with_new_period = u128::from(quota_now) * u128::from(period_now);
        Ok(with_new_period <= u128::from(quota) * u128::from(period))
    }

    fn cpu_v2(&mut self, cpu: &LinuxCpu) -> Result<()> {
        if cpu.realtime_runtime().is_some() || cpu.realtime_period().is_some() {
            return self.unsupported("realtime cpu limit", "not available on cgroup v2");
        }
        let weight = cpu.shares().and_then(weight_from_shares);
        self.set_given("cpu", "cpu.weight", weight);
        let quota = cpu.quota().filter(|q| *q != 0).map(max_or);
        let period = cpu.period().filter(|p| *p != 0);
        let max = match (quota, period) {
            (None, None) => None,
            // The kernel keeps the period when only the quota is written.
            (Some(quota), None) => Some(quota),
            (Some(quota), Some(period)) => Some(format!("{quota} {period}")),
            (None, Some(period)) => {
                let now = self.view.current("cpu", "cpu.max")?.unwrap_or_default();
                let quota = now.split_whitespace().next().unwrap_or("max").to_owned();
                Some(format!("{quota} {period}"))
            }
        };
        self.set_given("cpu", "cpu.max", max);
        Ok(())
    }
}
