//! Pulls in progress: at most one per reference and credentials.

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
        // The drop of a last handle ends the pull: not under the lock.
        let pulls = found.into_iter().map(|(reference, flight)| PullUnderWay {
            reference,
            progress: flight.progress.get(),
            seconds: flight.since.elapsed().as_secs(),
        });
        pulls.collect()
    }

    /// Forgets ended pulls, and with them their credentials.
    pub(super) fn tidy(&self) {
        let mut flights = self.0.lock();
        flights.retain(|_, flight| flight.strong_count() > 0);
    }
}

/// One pull; it is cancelled when its last handle is dropped.
pub(super) struct Flight {
    pub(super) outcome: watch::Receiver<Option<Outcome>>,
    pub(super) _task: AbortOnDropHandle<()>,
    pub(super) progress: Progress,
    pub(super) since: Instant,
}

/// A pull in progress, for reports.
#[derive(Debug, Clone)]
pub struct PullUnderWay {
    pub reference: String,
    /// As [`Progress::get`].
    pub progress: (u64, u64),
    pub seconds: u64,
}
