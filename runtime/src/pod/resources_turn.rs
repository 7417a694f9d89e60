//! The turn of a container's resources, which only `resources.rs` takes.

use tokio::sync::{Mutex, MutexGuard};

/// One change of resources at a time.
#[derive(Debug)]
pub struct ResourcesTurn(Mutex<HasCgroup>);

/// Whether the container's cgroup has been made, with the resources of its spec.
#[derive(Debug)]
pub(super) struct HasCgroup(pub bool);

impl ResourcesTurn {
    pub(super) fn new(has_cgroup: bool) -> Self {
        Self(Mutex::new(HasCgroup(has_cgroup)))
    }

    pub(super) async fn take(&self) -> MutexGuard<'_, HasCgroup> {
        self.0.lock().await
    }
}
