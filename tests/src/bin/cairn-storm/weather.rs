//! The times of faults: the only excuse for an error, a delayed or a lost call.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The effect of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The daemon was killed, ended, or stopped: connections break, answers are late.
    Daemon,
    /// All processes ended and `/run` was lost.
    Reboot,
    /// The monitor of this container, or of this pod's pause process, was killed.
    MonitorKilled(String),
    /// It was stopped for a while.
    MonitorHeld(String),
    /// A `cairn-create` was killed or stopped.
    Create,
    /// A `cairn unpack` was killed or stopped.
    Unpack,
    /// A CNI program was killed or stopped.
    Cni,
    /// A plugin was killed or stopped: calls may be late by its timeout.
    Plugin,
    /// The disk or the table of descriptors was full.
    Scarce,
    /// This object's record was unreadable: it was held, with its containers.
    Torn { id: String, pod: String },
}

#[derive(Debug)]
struct Spell {
    cause: Cause,
    from: Instant,
    until: Option<Instant>,
}

/// All faults so far. Shared by the keeper and the clients.
#[derive(Debug, Default)]
pub(crate) struct Weather {
    spells: Mutex<Vec<Spell>>,
    /// Ids that a client knows.
    reported: Mutex<HashSet<String>>,
    /// Ids whose removal a client has requested.
    doomed: Mutex<HashSet<String>>,
}

/// An active fault, for its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token(usize);

impl Weather {
    /// Records that a client knows this id.
    pub(crate) fn report(&self, id: &str) {
        self.reported.lock().insert(id.to_owned());
    }

    pub(crate) fn was_notified(&self, id: &str) -> bool {
        self.reported.lock().contains(id)
    }

    /// Records that a client requests the removal of this object.
    pub(crate) fn doom(&self, id: &str) {
        self.doomed.lock().insert(id.to_owned());
    }

    /// Whether the record of this object, or of its pod, may have been removed.
    pub(crate) fn is_doomed(&self, id: &str, pod: &str) -> bool {
        let doomed = self.doomed.lock();
        doomed.contains(id) || doomed.contains(pod)
    }

    /// Active from now on, until [`Weather::end`].
    pub(crate) fn begin(&self, cause: Cause) -> Token {
        self.since_when(Instant::now(), cause)
    }

    /// A fault that is active since this earlier time.
    pub(crate) fn since_when(&self, from: Instant, cause: Cause) -> Token {
        let mut spells = self.spells.lock();
        spells.push(Spell {
            cause,
            from,
            until: None,
        });
        Token(spells.len() - 1)
    }

    /// The affected processes may need `after` to recover.
    pub(crate) fn end(&self, token: Token, after: Duration) {
        self.spells.lock()[token.0].until = Some(Instant::now() + after);
    }

    /// Whether such a fault was active at any time since `from`.
    pub(crate) fn since(&self, from: Instant, is: impl Fn(&Cause) -> bool) -> bool {
        self.between(from, Instant::now(), is)
    }

    /// Whether such a fault was active at any time from `from` until `to`.
    pub(crate) fn between(&self, from: Instant, to: Instant, is: impl Fn(&Cause) -> bool) -> bool {
        self.spells.lock().iter().any(|spell| {
            spell.from <= to && spell.until.is_none_or(|until| until >= from) && is(&spell.cause)
        })
    }

    /// The faults of the last seconds, for the analysis of a violation.
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

    /// Whether such a fault is active now.
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
