//! The most recent connections and files that were rejected before their plugin was known. The list
//! of plugins shows them separately.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::observe::{Kind, PluginName};

/// Rejections that are still listed.
const MAX: usize = 16;

/// A connection, or a file of the plugin directory, that was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub kind: Kind,
    pub pid: Option<u32>,
    pub reason: String,
    /// How long ago it was, the last time.
    pub age: Duration,
    /// How many times since it was listed first.
    pub times: u64,
}

/// Newest last; one of each reason.
#[derive(Default)]
pub(crate) struct Rejections(Mutex<VecDeque<(Rejection, Instant)>>);

impl Rejections {
    pub(crate) fn remember(&self, name: &PluginName<'_>, reason: &str) {
        let mut all = self.0.lock();
        let is_same =
            |(was, _): &(Rejection, Instant)| was.kind == name.kind && was.reason == reason;
        let before = all.iter().position(is_same).and_then(|at| all.remove(at));
        if all.len() >= MAX {
            all.pop_front();
        }
        let rejection = Rejection {
            kind: name.kind,
            pid: name.pid,
            reason: reason.to_owned(),
            age: Duration::ZERO,
            times: before.map_or(1, |(was, _)| was.times + 1),
        };
        all.push_back((rejection, Instant::now()));
    }

    pub(crate) fn all(&self) -> Vec<Rejection> {
        let all = self.0.lock();
        let as_of_now = |(rejection, at): &(Rejection, Instant)| Rejection {
            age: at.elapsed(),
            ..rejection.clone()
        };
        all.iter().map(as_of_now).collect()
    }
}
