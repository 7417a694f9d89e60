//! Which faults were at work when: the only excuse for a call that was refused, late or lost.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// What a fault can explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The daemon was killed, ended, or held: connections break, answers are late.
    Daemon,
    /// All processes ended and `/run` is gone.
    Reboot,
    /// The monitor of this container, or of this pod's pause process, was killed.
    MonitorKilled(String),
    /// It was held for a while.
    MonitorHeld(String),
    /// A `cairn-create` was killed or held.
    Create,
    /// A `cairn unpack` was killed or held.
    Unpack,
    /// A CNI program was killed or held.
    Cni,
    /// A plugin was killed or held: calls may be late by its timeout.
    Plugin,
    /// The disk or the table of descriptors was full.
    Scarce,
    /// This object's record could not be read: it was held, with what is in it.
    Torn { id: String, pod: String },
}

#[derive(Debug)]
struct Spell {
    cause: Cause,
    from: Instant,
    until: Option<Instant>,
}

/// All faults so far. Shared by those who make them and those who judge.
#[derive(Debug, Default)]
pub(crate) struct Weather {
    spells: Mutex<Vec<Spell>>,
    /// Ids that a client was told.
    told: Mutex<HashSet<String>>,
}

/// A fault that is at work, to end it by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token(usize);

impl Weather {
    /// A client has learned this id.
    pub(crate) fn tell(&self, id: &str) {
        self.told.lock().insert(id.to_owned());
    }

    pub(crate) fn was_told(&self, id: &str) -> bool {
        self.told.lock().contains(id)
    }

    /// From now on, until [`Weather::end`].
    pub(crate) fn begin(&self, cause: Cause) -> Token {
        self.since_when(Instant::now(), cause)
    }

    /// A fault that may count from a moment on that has passed.
    pub(crate) fn since_when(&self, from: Instant, cause: Cause) -> Token {
        let mut spells = self.spells.lock();
        spells.push(Spell {
            cause,
            from,
            until: None,
        });
        Token(spells.len() - 1)
    }

    /// What the fault touched may need `after` to be itself again.
    pub(crate) fn end(&self, token: Token, after: Duration) {
        self.spells.lock()[token.0].until = Some(Instant::now() + after);
    }

    /// Whether such a fault was at work at any time since `from`.
    pub(crate) fn since(&self, from: Instant, is: impl Fn(&Cause) -> bool) -> bool {
        self.between(from, Instant::now(), is)
    }

    /// Whether such a fault was at work at any time from `from` until `to`.
    pub(crate) fn between(&self, from: Instant, to: Instant, is: impl Fn(&Cause) -> bool) -> bool {
        self.spells.lock().iter().any(|spell| {
            spell.from <= to && spell.until.is_none_or(|until| until >= from) && is(&spell.cause)
        })
    }

    /// What was at work in the last seconds, for who looks into a violation.
    pub(crate) fn lately(&self, seconds: u64) -> String {
        let from = Instant::now() - Duration::from_secs(seconds);
        let spells = self.spells.lock();
        let there = spells
            .iter()
            .filter(|spell| spell.until.is_none_or(|until| until >= from));
        there
            .map(|spell| {
                let ago = spell.from.elapsed().as_secs_f64();
                format!("{:?} {ago:.2} s ago", spell.cause)
            })
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Whether such a fault is at work now.
    pub(crate) fn now(&self, is: impl Fn(&Cause) -> bool) -> bool {
        self.since(Instant::now(), is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_excuses_what_overlaps_it_and_nothing_later() {
        let weather = Weather::default();
        let before = Instant::now();
        let token = weather.begin(Cause::Create);
        let is = |cause: &Cause| *cause == Cause::Create;
        assert!(weather.since(before, is) && weather.now(is));
        assert!(!weather.now(|cause| *cause == Cause::Cni));
        weather.end(token, Duration::ZERO);
        assert!(weather.since(before, is));
        assert!(!weather.since(Instant::now() + Duration::from_millis(1), is));
        assert!(weather.between(before, Instant::now(), is));
        let earlier = before - Duration::from_millis(1);
        assert!(!weather.between(earlier, earlier, is));
    }
}
