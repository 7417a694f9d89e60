//! The state of a monitor in memory, with its container.

use std::{fs, io, path::PathBuf};

use cairn_monitor::{record::Exit, wire::Phase};
use tokio::{sync::watch, time::Instant};

/// Stands for a process in a cgroup; no cgroup has this name.
const ALIVE: &str = "a process";

/// A monitor with its container.
pub(crate) struct Kept {
    pub phase: Phase,
    pub pid: i32,
    /// The cgroups of its container.
    pub cgroups: Vec<PathBuf>,
    pub clients: usize,
    /// It does not run until then.
    pub stuck: Option<Instant>,
    pub exit: watch::Sender<Option<Exit>>,
    /// The container ends when this is dropped.
    pub _alive: watch::Sender<()>,
    pub gone: watch::Receiver<()>,
}

impl Kept {
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Created | Phase::Running)
    }

    pub(crate) fn join(&self) -> io::Result<()> {
        self.cgroups
            .iter()
            .try_for_each(|group| fs::create_dir(group.join(ALIVE)))
    }

    /// Returns a cgroup that was removed before.
    pub(crate) fn leave(&self) -> Option<PathBuf> {
        let mut gone = None;
        for group in &self.cgroups {
            if fs::remove_dir(group.join(ALIVE)).is_err() {
                gone = Some(group.clone());
            }
        }
        gone
    }
}
