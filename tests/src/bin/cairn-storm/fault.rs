//! The faults: their names and frequencies.

use cairn_tests::rng::Rng;

use crate::target::Target;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillDaemon,
    EndDaemon,
    HoldDaemon,
    KillMonitor,
    HoldMonitor,
    KillCreate,
    HoldCreate,
    KillUnpack,
    HoldUnpack,
    KillCni,
    HoldCni,
    KillPlugin,
    HoldPlugin,
    RootFull,
    StateFull,
    Descriptors,
    TearRecord,
    Reboot,
}

impl Fault {
    pub(crate) const ALL: [Self; 18] = [
        Self::KillDaemon,
        Self::EndDaemon,
        Self::HoldDaemon,
        Self::KillMonitor,
        Self::HoldMonitor,
        Self::KillCreate,
        Self::HoldCreate,
        Self::KillUnpack,
        Self::HoldUnpack,
        Self::KillCni,
        Self::HoldCni,
        Self::KillPlugin,
        Self::HoldPlugin,
        Self::RootFull,
        Self::StateFull,
        Self::Descriptors,
        Self::TearRecord,
        Self::Reboot,
    ];

    pub(crate) fn name(self) -> &'static str {
        self.entry().0
    }
    pub(crate) fn about(self) -> &'static str {
        self.entry().1
    }
    /// Its relative frequency.
    fn weight(self) -> u64 {
        self.entry().2
    }

    fn entry(self) -> (&'static str, &'static str, u64) {
        match self {
            Self::KillDaemon => (
                "kill-daemon",
                "kill -9 of the daemon, which is started again",
                12,
            ),
            Self::EndDaemon => (
                "end-daemon",
                "SIGTERM of the daemon, which is started again",
                3,
            ),
            Self::HoldDaemon => ("hold-daemon", "SIGSTOP of the daemon for 1 to 5 s", 3),
            Self::KillMonitor => ("kill-monitor", "kill -9 of a monitor", 5),
            Self::HoldMonitor => ("hold-monitor", "SIGSTOP of a monitor for 2 to 20 s", 4),
            Self::KillCreate => ("kill-create", "kill -9 of a cairn-create", 5),
            Self::HoldCreate => ("hold-create", "SIGSTOP of a cairn-create for 1 to 6 s", 3),
            Self::KillUnpack => ("kill-unpack", "kill -9 of a cairn unpack", 4),
            Self::HoldUnpack => ("hold-unpack", "SIGSTOP of a cairn unpack for 1 to 6 s", 2),
            Self::KillCni => ("kill-cni", "kill -9 of a CNI program", 4),
            Self::HoldCni => ("hold-cni", "SIGSTOP of a CNI program for 1 to 4 s", 2),
            Self::KillPlugin => ("kill-plugin", "kill -9 of a plugin", 3),
            Self::HoldPlugin => ("hold-plugin", "SIGSTOP of a plugin for 1 to 6 s", 2),
            Self::RootFull => (
                "root-full",
                "not a byte is left of the root's disk, for 2 to 6 s",
                3,
            ),
            Self::StateFull => (
                "state-full",
                "not a byte is left below /run, for 2 to 6 s",
                2,
            ),
            Self::Descriptors => (
                "descriptors",
                "the daemon can open nothing more (EMFILE), for 2 to 6 s",
                3,
            ),
            Self::TearRecord => (
                "tear-record",
                "half of a pod's or container's record is lost, and put back after 3 to 8 s",
                2,
            ),
            Self::Reboot => (
                "reboot",
                "all processes and /run are gone, the boot id is another",
                1,
            ),
        }
    }

    /// Draws one of `from`.
    pub(crate) fn draw(from: &[Self], rng: &mut Rng) -> Option<Self> {
        let sum = from.iter().map(|fault| fault.weight()).sum();
        let mut at = rng.below(sum);
        from.iter().copied().find(|fault| {
            let here = at < fault.weight();
            at = at.saturating_sub(fault.weight());
            here
        })
    }

    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Self::KillMonitor | Self::HoldMonitor => Some(Target::Monitor),
            Self::KillCreate | Self::HoldCreate => Some(Target::Create),
            Self::KillUnpack | Self::HoldUnpack => Some(Target::Unpack),
            Self::KillCni | Self::HoldCni => Some(Target::Cni),
            Self::KillPlugin | Self::HoldPlugin => Some(Target::Plugin),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fault_is_drawn_and_a_seed_draws_the_same() {
        let draw = || {
            let mut rng = Rng::new(1, "faults");
            (0..2000)
                .filter_map(|_| Fault::draw(&Fault::ALL, &mut rng))
                .map(Fault::name)
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(), draw());
        let drawn: BTreeSet<_> = draw().into_iter().collect();
        assert_eq!(drawn.len(), Fault::ALL.len());
        assert!(Fault::draw(&[], &mut Rng::new(1, "faults")).is_none());
    }
}
