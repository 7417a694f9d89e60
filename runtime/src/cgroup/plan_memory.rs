//! Pure: the memory part of a plan, with limit and swap in an order that the kernel accepts.

use super::error::Result;
use super::host::Place;
use super::plan::Plan;
use super::values::max_or;
use oci_spec::runtime::LinuxMemory;

impl Plan<'_> {
    pub(super) fn memory(&mut self, memory: &LinuxMemory) -> Result<()> {
        if *memory == LinuxMemory::default() {
            return Ok(());
        }
        let place = self.place("memory", "memory limit")?;
        if memory.use_hierarchy() == Some(false) {
            return self.unsupported("memory without hierarchy", "removed from Linux");
        }
        match place {
            Place::V1(_) => self.memory_v1(memory),
            Place::V2(_) => self.memory_v2(memory),
        }
    }

    /// The kernel requires `memsw >= limit` at each single write, so that the order depends on the
    /// new limit and the current memsw. Without swap accounting there is no memsw file, and the
    /// swap part is left out.
    fn memory_v1(&mut self, memory: &LinuxMemory) -> Result<()> {
        const LIMIT: &str = "memory.limit_in_bytes";
        const MEMSW: &str = "memory.memsw.limit_in_bytes";
        let has_memsw = self.view.current("memory", MEMSW)?.is_some();
        let limit_now = self.current_number("memory", LIMIT)?;
        let memsw_now = self.current_number("memory", MEMSW)?;
        let limit = memory.limit();
        let no_room = |limit: i64| above(limit, memsw_now);
        let swap = match (memory.swap(), limit) {
            _ if !has_memsw => None,
            (Some(swap), Some(limit)) if above(limit, swap_bytes(swap)) => {
                return self.bad("memory+swap limit below the memory limit", &swap);
            }
            (Some(swap), _) => Some(swap),
            // Only the limit is given: "no swap" stays so, and memsw is never below the limit.
            (None, Some(limit)) => {
                let no_swap = limit_now.is_some() && memsw_now == limit_now;
                (no_swap || no_room(limit)).then_some(limit)
            }
            (None, None) => None,
        };
        let swap_first = limit.is_some_and(no_room);
        let swap_if = |first| swap.filter(|_| swap_first == first);
        let (reservation, tcp) = (memory.reservation(), memory.kernel_tcp());
        let oom_control = memory.disable_oom_killer().map(u8::from);
        self.set_given("memory", MEMSW, swap_if(true));
        self.set_given("memory", LIMIT, limit);
        self.set_given("memory", MEMSW, swap_if(false));
        self.set_given("memory", "memory.soft_limit_in_bytes", reservation);
        self.set_given("memory", "memory.kmem.tcp.limit_in_bytes", tcp);
        self.set_given("memory", "memory.swappiness", memory.swappiness());
        self.set_given("memory", "memory.oom_control", oom_control);
        Ok(())
    }

    /// OCI's swap is memory plus swap; v2 expects the swap alone.
    fn memory_v2(&mut self, memory: &LinuxMemory) -> Result<()> {
        const SWAP: &str = "memory.swap.max";
        if memory.disable_oom_killer() == Some(true) {
            return self.unsupported("disabled OOM killer", "not available on cgroup v2");
        }
        if memory.swappiness().is_some() {
            return self.unsupported("memory swappiness", "not available per cgroup on cgroup v2");
        }
        let swap = match (memory.swap(), memory.limit()) {
            (None, _) => None,
            (Some(swap), _) if swap < 0 => Some("max".to_owned()),
            (Some(swap), limit) => {
                let limit = match limit {
                    Some(limit) => swap_bytes(limit),
                    None => self.current_number("memory", "memory.max")?,
                };
                match limit.and_then(|limit| swap.unsigned_abs().checked_sub(limit)) {
                    Some(alone) => Some(alone.to_string()),
                    None => return self.bad("memory+swap limit below the memory limit", &swap),
                }
            }
        };
        self.set_given("memory", "memory.max", memory.limit().map(max_or));
        // A host without swap accounting has nothing to limit.
        if let Some(swap) = swap
            && self.view.current("memory", SWAP)?.is_some()
        {
            self.set("memory", SWAP, swap);
        }
        self.set_given("memory", "memory.low", memory.reservation().map(max_or));
        Ok(())
    }
}

/// A limit in bytes; `None` if negative, which means unlimited.
fn swap_bytes(limit: i64) -> Option<u64> {
    u64::try_from(limit).ok()
}

/// Whether `limit` (negative: unlimited) is above `bound` (`None`: unlimited).
fn above(limit: i64, bound: Option<u64>) -> bool {
    match (u64::try_from(limit), bound) {
        (_, None) => false,
        (Err(_), Some(_)) => true,
        (Ok(limit), Some(bound)) => limit > bound,
    }
}
