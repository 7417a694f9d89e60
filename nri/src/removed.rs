//! The most recently closed plugins with their last state, for the list of plugins.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    metrics::Stats,
    observe::{PluginInfo, PluginState},
    plugin_id::PluginId,
};

/// Closed plugins that are still listed.
const MAX_REMOVED: usize = 16;

/// A plugin that was closed.
struct Removed {
    info: PluginInfo,
    /// A call that ends because its connection ends is counted after that.
    stats: Arc<Stats>,
    at: Instant,
}

impl Removed {
    fn as_of_now(&self) -> PluginInfo {
        let mut info = self.info.clone();
        self.stats.fill(&mut info);
        PluginInfo {
            since: self.at.elapsed(),
            last_error: self.info.last_error.clone(),
            last_error_age: self.at.elapsed(),
            ..info
        }
    }
}

/// Newest last; one per id.
#[derive(Default)]
pub(crate) struct RemovedPlugins(Mutex<VecDeque<Removed>>);

impl RemovedPlugins {
    pub(crate) fn remember(&self, info: PluginInfo, stats: Arc<Stats>) {
        let mut removed = self.0.lock();
        removed.retain(|was| was.info.id != info.id);
        if removed.len() >= MAX_REMOVED {
            removed.pop_front();
        }
        let at = Instant::now();
        removed.push_back(Removed { info, stats, at });
    }

    /// Adds how the process of a closed plugin ended to the reason.
    pub(crate) fn add_end(&self, id: &PluginId, how: &str) {
        let mut removed = self.0.lock();
        let was = removed.iter_mut().find(|was| was.info.id == *id);
        if let Some(reason) = was.and_then(|was| was.info.last_error.as_mut()) {
            reason.push_str("; ");
            reason.push_str(how);
        }
    }

    /// Appends them to the connected plugins; an absent expected plugin gets the reason of its end.
    pub(crate) fn add_to(&self, all: &mut Vec<PluginInfo>) {
        for was in self.0.lock().iter() {
            let at = was.at;
            match all.iter_mut().find(|info| info.id == was.info.id) {
                Some(info) if info.state == PluginState::Absent => {
                    info.since = at.elapsed();
                    info.last_error.clone_from(&was.info.last_error);
                    info.last_error_age = at.elapsed();
                }
                Some(_) => {}
                None => all.push(was.as_of_now()),
            }
        }
    }
}
