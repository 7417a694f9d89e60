//! Plugins that failed to synchronise, by id. Each failure lengthens the pause before the next
//! join, and operations do not wait for these plugins.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::plugin_id::PluginId;

/// After this many failures in a row, operations do not wait for the next attempt.
const TOO_OFTEN: u32 = 2;
/// The pause before the attempt after that; it doubles before each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Age at which a failure is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Remembered ids; the one with the oldest failure is dropped first.
const MAX_IDS: usize = 1024;

/// Failures in a row of one id.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Failures(u32);

impl Failures {
    pub(crate) fn is_too_often(self) -> bool {
        self.0 >= TOO_OFTEN
    }

    /// The pause before the next attempt.
    pub(crate) fn pause(self) -> Duration {
        match self.0.checked_sub(TOO_OFTEN) {
            None => Duration::ZERO,
            Some(more) => (FIRST_PAUSE * 2u32.pow(more.min(6))).min(LONGEST_PAUSE),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct FailedJoins(Mutex<BTreeMap<PluginId, (Failures, Instant)>>);

impl FailedJoins {
    pub(crate) fn of(&self, id: &PluginId) -> Failures {
        let all = self.0.lock();
        let known = all.get(id).filter(|(_, at)| at.elapsed() < FORGOTTEN);
        known.map(|(failures, _)| *failures).unwrap_or_default()
    }

    /// The plugin is active.
    pub(crate) fn forget(&self, id: &PluginId) {
        self.0.lock().remove(id);
    }

    /// Begins an attempt, which counts as failed unless it [succeeds](Attempt::succeeded).
    pub(crate) fn attempt<'a>(&'a self, id: &'a PluginId) -> Attempt<'a> {
        Attempt { all: self, id }
    }

    fn set(&self, id: &PluginId, failures: Failures) {
        let mut all = self.0.lock();
        all.insert(id.clone(), (failures, Instant::now()));
        if all.len() > MAX_IDS
            && let Some(oldest) = all.iter().min_by_key(|(_, (_, at))| *at)
        {
            let oldest = oldest.0.clone();
            all.remove(&oldest);
        }
    }
}

/// An attempt to synchronise a plugin.
pub(crate) struct Attempt<'a> {
    all: &'a FailedJoins,
    id: &'a PluginId,
}

impl Attempt<'_> {
    /// Records the success: the next attempt is awaited. If that fails, the one after is not.
    pub(crate) fn succeeded(self) {
        let Self { all, id } = self;
        let failures = all.of(id).0.min(TOO_OFTEN - 1);
        std::mem::forget(self);
        all.set(id, Failures(failures));
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let failures = self.all.of(self.id).0;
        self.all.set(self.id, Failures(failures.saturating_add(1)));
    }
}
