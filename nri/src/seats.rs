//! The uses of a plugin id: ids that are reserved for in-process and launched plugins, the instance
//! that joins under an id, and instances that a newer one has replaced (its shadows).

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::{observe::Kind, plugin::Session, plugin_id::PluginId};

/// Instances of one id that are in the shadow of a newer one.
pub(crate) const MAX_SHADOWS: usize = 8;

#[derive(Default)]
pub(crate) struct Seats {
    /// In-process plugins and those of the plugin directory, active or not: no other plugin may use
    /// their rights.
    reserved: Mutex<BTreeMap<PluginId, Kind>>,
    /// Locked by the instance that joins under an id.
    joining: Mutex<BTreeMap<PluginId, Arc<AsyncMutex<()>>>>,
    /// Newest last.
    shadows: Mutex<Vec<Arc<Session>>>,
}

impl Seats {
    pub(crate) fn reserve(&self, id: &PluginId, kind: Kind) {
        self.reserved.lock().insert(id.clone(), kind);
    }

    pub(crate) fn reserved_for(&self, id: &PluginId) -> Option<Kind> {
        self.reserved.lock().get(id).copied()
    }

    /// The right to be the one that joins under this id.
    pub(crate) async fn alone(&self, id: &PluginId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut joining = self.joining.lock();
            joining.retain(|_, lock| Arc::strong_count(lock) > 1);
            joining.entry(id.clone()).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// Gives the oldest instance of the id if there are too many now.
    pub(crate) fn add_shadow(&self, session: &Arc<Session>) -> Option<Arc<Session>> {
        let mut shadows = self.shadows.lock();
        shadows.push(session.clone());
        let mut own = shadows.iter().filter(|shadow| shadow.id == session.id);
        let full = own.clone().count() > MAX_SHADOWS;
        own.next().filter(|_| full).cloned()
    }

    pub(crate) fn remove_shadow(&self, session: &Arc<Session>) {
        self.shadows.lock().retain(|s| !Arc::ptr_eq(s, session));
    }

    pub(crate) fn shadows(&self) -> Vec<Arc<Session>> {
        self.shadows.lock().clone()
    }

    pub(crate) fn has_shadow(&self, id: &PluginId) -> bool {
        self.shadows.lock().iter().any(|session| session.id == *id)
    }

    pub(crate) fn take_newest_shadow(&self, id: &PluginId) -> Option<Arc<Session>> {
        let mut shadows = self.shadows.lock();
        let newest = shadows.iter().rposition(|session| session.id == *id)?;
        Some(shadows.remove(newest))
    }
}
