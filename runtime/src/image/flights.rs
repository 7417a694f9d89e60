//! Pulls under way: of one reference with the same credentials there is one at a time.

use std::collections::HashMap;
use std::sync::Weak;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::digest::Digest;
use super::progress::Progress;
use super::pull_error::PullError;
use super::registry::auth::Auth;

pub(super) type Outcome = Result<Digest, PullError>;
pub(super) type Key = (String, Auth);

/// Pulls under way.
#[derive(Default)]
pub(super) struct Flights(pub(super) Mutex<HashMap<Key, Weak<Flight>>>);

impl Flights {
    pub(super) fn under_way(&self) -> Vec<PullUnderWay> {
        let flights = self.0.lock();
        let flights = flights.iter().filter_map(|((reference, _), flight)| {
            let flight = flight.upgrade()?;
            Some((reference.clone(), flight))
        });
        let found: Vec<_> = flights.collect();
        // Whoever holds the last one ends the pull: not under the lock.
        let told = found.into_iter().map(|(reference, flight)| PullUnderWay {
            reference,
            progress: flight.progress.get(),
            seconds: flight.since.elapsed().as_secs(),
        });
        told.collect()
    }

    /// Forgets pulls that are over, and with them the credentials they were asked with.
    pub(super) fn tidy(&self) {
        let mut flights = self.0.lock();
        flights.retain(|_, flight| flight.strong_count() > 0);
    }
}

/// One pull; it is given up when nobody holds it.
pub(super) struct Flight {
    pub(super) outcome: watch::Receiver<Option<Outcome>>,
    pub(super) _task: AbortOnDropHandle<()>,
    pub(super) progress: Progress,
    pub(super) since: Instant,
}

/// A pull under way, for who wants to know how far it is.
#[derive(Debug, Clone)]
pub struct PullUnderWay {
    pub reference: String,
    /// As [`Progress::get`].
    pub progress: (u64, u64),
    pub seconds: u64,
}
