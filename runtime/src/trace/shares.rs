//! Shares of plugins in the event log: events that a plugin may cause at any rate must not displace
//! all others.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Events of one plugin at once: an update of each container of a large node.
const BURST: u32 = 500;
/// Time in which a plugin earns one more.
const EACH: Duration = Duration::from_millis(500);

/// Names with a share of their own at a time: a plugin that connects chooses its name.
const NAMES: usize = 64;
/// The name whose share all other names use.
const OTHERS: &str = "other plugins";

/// By plugin. One that has earned all it has taken is not in here.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<BTreeMap<String, Share>>);

#[derive(Debug)]
struct Share {
    /// When it will have earned what it has taken.
    earned: Instant,
    left_out: u64,
}

/// Whether an event is recorded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    Recorded,
    /// Only counted, under this name; it is the first since [`Shares::left_out`] was asked.
    FirstLeftOut(String),
    LeftOut,
}

impl Shares {
    pub(super) fn take(&self, plugin: &str, now: Instant) -> Place {
        let mut all = self.0.lock();
        all.retain(|_, share| share.earned > now || share.left_out > 0);
        let fresh = Share {
            earned: now,
            left_out: 0,
        };
        let own = all.keys().filter(|name| *name != OTHERS).count();
        let name = if all.contains_key(plugin) || own < NAMES {
            plugin
        } else {
            OTHERS
        };
        let share = all.entry(name.to_owned()).or_insert(fresh);
        let earned = share.earned.max(now) + EACH;
        if earned.duration_since(now) <= EACH * BURST {
            share.earned = earned;
            return Place::Recorded;
        }
        share.left_out += 1;
        if share.left_out == 1 {
            Place::FirstLeftOut(name.to_owned())
        } else {
            Place::LeftOut
        }
    }

    /// How many were left out since this was asked before.
    pub(super) fn left_out(&self, name: &str) -> u64 {
        let mut all = self.0.lock();
        all.get_mut(name)
            .map_or(0, |share| std::mem::take(&mut share.left_out))
    }

    /// The names of shares with omitted events.
    pub(super) fn names_left_out(&self) -> Vec<String> {
        let all = self.0.lock();
        let counted = all.iter().filter(|(_, share)| share.left_out > 0);
        counted.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_other_plugins_have_their_own_share() {
        let (shares, now) = (Shares::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(shares.take("10-a", now), Place::Recorded);
        }
        let first = Place::FirstLeftOut("10-a".to_owned());
        assert_eq!(shares.take("10-a", now), first);
        assert_eq!(shares.take("10-a", now), Place::LeftOut);
        assert_eq!(shares.take("10-b", now), Place::Recorded);
        assert_eq!((shares.left_out("10-a"), shares.left_out("10-a")), (2, 0));
        assert_eq!(shares.take("10-a", now + EACH), Place::Recorded);
        assert_eq!(shares.take("10-a", now + EACH), first);
        shares.left_out("10-a");
        let later = now + EACH * (BURST + 2);
        assert_eq!(shares.take("10-c", later), Place::Recorded);
        assert_eq!(
            shares.0.lock().len(),
            1,
            "who has earned it all is forgotten"
        );
    }

    #[test]
    fn names_beyond_the_bound_have_one_share_together() {
        let (shares, now) = (Shares::default(), Instant::now());
        for n in 0..NAMES {
            assert_eq!(shares.take(&format!("10-a{n}"), now), Place::Recorded);
        }
        for n in 0..BURST {
            assert_eq!(shares.take(&format!("20-b{n}"), now), Place::Recorded);
        }
        let first = Place::FirstLeftOut(OTHERS.to_owned());
        assert_eq!(shares.take("20-b", now), first);
        assert_eq!(shares.take("20-c", now), Place::LeftOut);
        assert_eq!(shares.take("10-a0", now), Place::Recorded);
        assert_eq!(shares.names_left_out(), [OTHERS]);
        assert_eq!(shares.0.lock().len(), NAMES + 1);
    }
}
