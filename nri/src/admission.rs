//! Bounds on plugins that connect.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::{identity, limits::Limits, owners::PluginId, pace::Pace};

/// Bounds of what plugins may ask of the runtime.
pub(crate) struct Admission {
    pub(crate) limits: Arc<Limits>,
    pub(crate) pace: Pace<PluginId>,
    /// Of the programs of plugins that connect.
    pub(crate) lookups: Arc<Semaphore>,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            limits: Arc::default(),
            pace: Pace::of_updates(),
            lookups: identity::lookups(),
        }
    }
}
