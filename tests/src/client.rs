//! The CRI client of one daemon.

use std::{path::Path, sync::Arc};

pub use testkit::client::Client;

/// A client of one daemon, with defaults for its requests. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Cri {
    pub client: Client,
    pub(crate) dir: Arc<Path>,
    pub(crate) cgroup_parent: Arc<str>,
}

impl Cri {
    /// `client` is connected; logs are below `dir`, cgroups below `cgroup_parent`.
    pub fn new(client: Client, dir: &Path, cgroup_parent: &str) -> Self {
        Self {
            client,
            dir: dir.into(),
            cgroup_parent: cgroup_parent.into(),
        }
    }
}
