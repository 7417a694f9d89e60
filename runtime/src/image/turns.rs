//! Turns for fetching layers: bounded in total, per host and per image, and fair.
//!
//! A turn lasts while a layer is transferred and unpacked. The next one goes to the host with the
//! fewest turns, then to the image with the fewest, then to the first in the queue. A slow host or
//! image uses up only its own share.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Layers fetched at a time from one host, and in all. The second is larger, so that one host does
/// not delay all others.
pub const LAYERS_PER_HOST: usize = 4;
const LAYERS: usize = 32;

/// The most turns at once.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub all: usize,
    pub host: usize,
    pub image: usize,
}

impl Bounds {
    /// Bounds with this many concurrent layers per image.
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
    /// Active and waiting turns change together: a panic under the lock spoils nothing.
    state: Mutex<State>,
}

/// Owner of a turn: a host, and an image by a number that no other pull has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    host: String,
    image: u64,
}

#[derive(Default)]
struct State {
    /// Owners of active turns.
    active: Vec<Owner>,
    waiting: VecDeque<(Owner, oneshot::Sender<Turn>)>,
    /// The number of the next image.
    next: u64,
}

/// A right to fetch one layer; dropping it passes it on.
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

    /// A number for an image whose layers will be fetched.
    pub(super) fn image(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        state.next
    }

    /// Waits for a turn of this host and image.
    pub(super) async fn take(self: &Arc<Self>, host: &str, image: u64) -> Option<Turn> {
        let (sender, receiver) = oneshot::channel();
        let host = host.to_owned();
        let owner = Owner { host, image };
        self.state.lock().waiting.push_back((owner, sender));
        self.grant();
        receiver.await.ok()
    }

    /// Grants turns to waiting owners within the bounds.
    fn grant(self: &Arc<Self>) {
        loop {
            let (owner, sender) = {
                let mut state = self.state.lock();
                state.waiting.retain(|(_, sender)| !sender.is_closed());
                let Some(at) = state.next(self.bounds) else {
                    return;
                };
                let Some((owner, sender)) = state.waiting.remove(at) else {
                    return;
                };
                state.active.push(owner.clone());
                (owner, sender)
            };
            let turns = self.clone();
            // An owner that has left drops the turn, which grants the next one.
            let _ = sender.send(Turn { turns, owner });
        }
    }
}

impl State {
    /// The next waiting owner, if the bounds allow one.
    fn next(&self, bounds: Bounds) -> Option<usize> {
        let active = &self.active;
        if active.len() >= bounds.all {
            return None;
        }
        let waiting = self.waiting.iter().enumerate();
        let may = waiting.filter_map(|(at, (owner, _))| {
            let host = active
                .iter()
                .filter(|active| active.host == owner.host)
                .count();
            let image = active
                .iter()
                .filter(|active| active.image == owner.image)
                .count();
            (host < bounds.host && image < bounds.image).then_some((host, image, at))
        });
        may.min().map(|(_, _, at)| at)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let active = &mut self.turns.state.lock().active;
            if let Some(at) = active.iter().position(|active| *active == self.owner) {
                active.swap_remove(at);
            }
        }
        self.turns.grant();
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

    /// Takes a turn if one is free at once.
    fn ask(turns: &Arc<Turns>, host: &str, image: u64) -> Option<Turn> {
        turns.take(host, image).now_or_never().flatten()
    }

    #[test]
    fn an_image_a_host_and_all_together_have_their_bound() {
        let turns = Turns::new(BOUNDS);
        let active: Vec<_> = (0..3).map(|_| ask(&turns, "a", 1)).collect();
        assert_eq!(active.iter().flatten().count(), 2, "one image has two");
        let more: Vec<_> = (0..3).map(|n| ask(&turns, "a", 10 + n)).collect();
        assert_eq!(more.iter().flatten().count(), 1, "one host has three");
        let others: Vec<_> = (0..4).map(|n| ask(&turns, "b", 20 + n)).collect();
        assert_eq!(others.iter().flatten().count(), 3, "six in all");
        drop(active);
        assert!(ask(&turns, "c", 30).is_some());
    }

    #[tokio::test]
    async fn a_turn_goes_to_the_host_that_has_the_fewest() {
        let turns = Turns::new(BOUNDS);
        let active: Vec<_> = [("a", 1), ("a", 1), ("b", 2), ("b", 2), ("b", 3), ("c", 4)]
            .map(|(host, image)| ask(&turns, host, image).unwrap())
            .into();
        let (one, two) = (turns.clone(), turns.clone());
        let mut of_a = Box::pin(async move { one.take("a", 5).await.unwrap() });
        let mut of_d = Box::pin(async move { two.take("d", 6).await.unwrap() });
        assert!((&mut of_a).now_or_never().is_none() && (&mut of_d).now_or_never().is_none());
        let mut active = active.into_iter();
        drop(active.next_back());
        assert!((&mut of_a).now_or_never().is_none());
        assert!(
            (&mut of_d).now_or_never().is_some(),
            "it came later, but has nothing yet"
        );
        drop(active.next());
        assert!(of_a.now_or_never().is_some());
    }

    #[test]
    fn a_turn_of_who_went_away_passes_on() {
        let turns = Turns::new(Bounds { all: 1, ..BOUNDS });
        let active = ask(&turns, "a", 1);
        assert!(
            active.is_some() && ask(&turns, "b", 2).is_none(),
            "and its caller has left"
        );
        drop(active);
        assert!(ask(&turns, "c", 3).is_some());
        assert!(turns.state.lock().active.is_empty());
    }

    proptest! {
        #[test]
        fn bounds_hold_and_nobody_waits_who_could_go(
            steps in prop::collection::vec((0..4u8, 0..6u64, any::<bool>()), 1..80),
        ) {
            let turns = Turns::new(BOUNDS);
            let mut waiting = Vec::new();
            let mut active: Vec<Turn> = Vec::new();
            for (host, image, take) in steps {
                if take {
                    let turns = turns.clone();
                    let host = host.to_string();
                    waiting.push(Box::pin(async move { turns.take(&host, image).await.unwrap() }));
                } else if !active.is_empty() {
                    active.remove(usize::from(host) % active.len());
                }
                // Turns reach polled futures; all are polled until none gets one.
                loop {
                    let before = active.len();
                    waiting.retain_mut(|w| match w.now_or_never() {
                        Some(turn) => {
                            active.push(turn);
                            false
                        }
                        None => true,
                    });
                    if active.len() == before {
                        break;
                    }
                }
                let state = turns.state.lock();
                prop_assert_eq!(state.active.len(), active.len());
                prop_assert!(active.len() <= BOUNDS.all);
                for Turn { owner, .. } in &active {
                    let of_host = state.active.iter().filter(|active| active.host == owner.host);
                    prop_assert!((1..=BOUNDS.host).contains(&of_host.count()));
                    let of_image = state.active.iter().filter(|active| active.image == owner.image);
                    prop_assert!((1..=BOUNDS.image).contains(&of_image.count()));
                }
                prop_assert_eq!(state.waiting.len(), waiting.len());
                prop_assert!(state.next(BOUNDS).is_none());
            }
        }
    }
}
