//! The turn of a container's resources, which only `resources.rs` takes.

use tokio::sync::{Mutex, MutexGuard};

/// One change of resources at a time.
#[derive(Debug, Default)]
pub struct ResourcesTurn(Mutex<HasCgroup>);

/// Whether the start has made the container's cgroup, with the resources of its spec.
#[derive(Debug, Default)]
pub(super) struct HasCgroup(pub bool);

impl ResourcesTurn {
    pub(super) async fn take(&self) -> MutexGuard<'_, HasCgroup> {
        self.0.lock().await
    }
}
