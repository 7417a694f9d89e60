//! Whose layer is fetched next: bounded in all, per host and per image, and fair over them.
//!
//! A turn is held while a layer is transferred and unpacked. Who waits is served in this order: the
//! host with the fewest turns, then the image with the fewest, then who came first. So a host that is
//! slow, or an image that is, uses up its own share and nobody else's.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Layers that are fetched at a time from one host, and in all: more, or one host would hold up all others.
pub const LAYERS_PER_HOST: usize = 4;
const LAYERS: usize = 32;

/// How many turns there are at once.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub all: usize,
    pub host: usize,
    pub image: usize,
}

impl Bounds {
    /// With so many layers of one image at a time.
    pub fn of(image: usize) -> Self {
        Self {
            all: LAYERS,
            host: LAYERS_PER_HOST,
            image,
        }
    }
}

pub(super) struct Turns {
    bounds: Bounds,
    /// Who holds and who waits changes in one go: a panic while it is locked spoils nothing.
    state: Mutex<State>,
}

/// Of whom a turn is: a host, and an image by a number that no other pull has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    host: String,
    image: u64,
}

#[derive(Default)]
struct State {
    /// Whose turns are held.
    held: Vec<Owner>,
    waiting: VecDeque<(Owner, oneshot::Sender<Turn>)>,
    /// The number of the next image.
    next: u64,
}

/// A right to fetch one layer; it passes on when dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    owner: Owner,
}

impl Turns {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            state: Mutex::default(),
        })
    }

    /// A number for an image whose layers are to be fetched.
    pub(super) fn image(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        state.next
    }

    /// Waits for a turn of this host and image.
    pub(super) async fn take(self: &Arc<Self>, host: &str, image: u64) -> Option<Turn> {
        let (tell, told) = oneshot::channel();
        let host = host.to_owned();
        let owner = Owner { host, image };
        self.state.lock().waiting.push_back((owner, tell));
        self.hand_on();
        told.await.ok()
    }

    /// Gives turns to those who wait, as far as the bounds go.
    fn hand_on(self: &Arc<Self>) {
        loop {
            let (owner, tell) = {
                let mut state = self.state.lock();
                state.waiting.retain(|(_, tell)| !tell.is_closed());
                let Some(at) = state.next(self.bounds) else {
                    return;
                };
                let Some((owner, tell)) = state.waiting.remove(at) else {
                    return;
                };
                state.held.push(owner.clone());
                (owner, tell)
            };
            let turns = self.clone();
            // Who went away meanwhile gives it back: the drop of a turn hands on by itself.
            let _ = tell.send(Turn { turns, owner });
        }
    }
}

impl State {
    /// Who of those that wait is next, if anybody may be.
    fn next(&self, bounds: Bounds) -> Option<usize> {
        let held = &self.held;
        if held.len() >= bounds.all {
            return None;
        }
        let waiting = self.waiting.iter().enumerate();
        let may = waiting.filter_map(|(at, (owner, _))| {
            let host = held.iter().filter(|held| held.host == owner.host).count();
            let image = held.iter().filter(|held| held.image == owner.image).count();
            (host < bounds.host && image < bounds.image).then_some((host, image, at))
        });
        may.min().map(|(_, _, at)| at)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let held = &mut self.turns.state.lock().held;
            if let Some(at) = held.iter().position(|held| *held == self.owner) {
                held.swap_remove(at);
            }
        }
        self.turns.hand_on();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        all: 6,
        host: 3,
        image: 2,
    };

    /// Asks, and gives the turn if there is one at once.
    fn ask(turns: &Arc<Turns>, host: &str, image: u64) -> Option<Turn> {
        turns.take(host, image).now_or_never().flatten()
    }

    #[test]
    fn an_image_a_host_and_all_together_have_their_bound() {
        let turns = Turns::new(BOUNDS);
        let held: Vec<_> = (0..3).map(|_| ask(&turns, "a", 1)).collect();
        assert_eq!(held.iter().flatten().count(), 2, "one image has two");
        let more: Vec<_> = (0..3).map(|n| ask(&turns, "a", 10 + n)).collect();
        assert_eq!(more.iter().flatten().count(), 1, "one host has three");
        let others: Vec<_> = (0..4).map(|n| ask(&turns, "b", 20 + n)).collect();
        assert_eq!(others.iter().flatten().count(), 3, "six in all");
        drop(held);
        assert!(ask(&turns, "c", 30).is_some());
    }

    #[tokio::test]
    async fn a_turn_goes_to_the_host_that_has_the_fewest() {
        let turns = Turns::new(BOUNDS);
        let held: Vec<_> = [("a", 1), ("a", 1), ("b", 2), ("b", 2), ("b", 3), ("c", 4)]
            .map(|(host, image)| ask(&turns, host, image).unwrap())
            .into();
        let (one, two) = (turns.clone(), turns.clone());
        let mut of_a = Box::pin(async move { one.take("a", 5).await.unwrap() });
        let mut of_d = Box::pin(async move { two.take("d", 6).await.unwrap() });
        assert!((&mut of_a).now_or_never().is_none() && (&mut of_d).now_or_never().is_none());
        let mut held = held.into_iter();
        drop(held.next_back());
        assert!((&mut of_a).now_or_never().is_none());
        assert!(
            (&mut of_d).now_or_never().is_some(),
            "it came later, but has nothing yet"
        );
        drop(held.next());
        assert!(of_a.now_or_never().is_some());
    }

    #[test]
    fn a_turn_of_who_went_away_passes_on() {
        let turns = Turns::new(Bounds { all: 1, ..BOUNDS });
        let held = ask(&turns, "a", 1);
        assert!(
            held.is_some() && ask(&turns, "b", 2).is_none(),
            "and its asker is gone"
        );
        drop(held);
        assert!(ask(&turns, "c", 3).is_some());
        assert!(turns.state.lock().held.is_empty());
    }

    proptest! {
        #[test]
        fn bounds_hold_and_nobody_waits_who_could_go(
            steps in prop::collection::vec((0..4u8, 0..6u64, any::<bool>()), 1..80),
        ) {
            let turns = Turns::new(BOUNDS);
            let mut waiting = Vec::new();
            let mut held: Vec<Turn> = Vec::new();
            for (host, image, take) in steps {
                if take {
                    let turns = turns.clone();
                    let host = host.to_string();
                    waiting.push(Box::pin(async move { turns.take(&host, image).await.unwrap() }));
                } else if !held.is_empty() {
                    held.remove(usize::from(host) % held.len());
                }
                // Turns come to those whose futures are polled; all are, until none comes any more.
                loop {
                    let before = held.len();
                    waiting.retain_mut(|w| match w.now_or_never() {
                        Some(turn) => {
                            held.push(turn);
                            false
                        }
                        None => true,
                    });
                    if held.len() == before {
                        break;
                    }
                }
                let state = turns.state.lock();
                prop_assert_eq!(state.held.len(), held.len());
                prop_assert!(held.len() <= BOUNDS.all);
                for Turn { owner, .. } in &held {
                    let of_host = state.held.iter().filter(|held| held.host == owner.host);
                    prop_assert!((1..=BOUNDS.host).contains(&of_host.count()));
                    let of_image = state.held.iter().filter(|held| held.image == owner.image);
                    prop_assert!((1..=BOUNDS.image).contains(&of_image.count()));
                }
                prop_assert_eq!(state.waiting.len(), waiting.len());
                prop_assert!(state.next(BOUNDS).is_none());
            }
        }
    }
}
