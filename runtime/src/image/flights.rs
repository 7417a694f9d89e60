//! Pulls under way: of one reference with the same credentials there is one at a time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, Weak};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::auth::Auth;
use super::digest::Digest;
use super::pull_error::PullError;

pub(super) type Outcome = Result<Digest, PullError>;
pub(super) type Key = (String, Auth);

/// Pulls under way.
#[derive(Default)]
pub(super) struct Flights(pub(super) Mutex<HashMap<Key, Weak<Flight>>>);

impl Flights {
    /// Forgets pulls that are over, and with them the credentials they were asked with.
    pub(super) fn tidy(&self) {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.strong_count() > 0);
    }
}

/// One pull; it is given up when nobody holds it.
pub(super) struct Flight {
    pub(super) outcome: watch::Receiver<Option<Outcome>>,
    pub(super) task: JoinHandle<()>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}
