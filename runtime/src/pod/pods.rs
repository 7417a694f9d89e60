//! The context of the steps: the machine, the pods, and the reports about them.

use std::sync::Arc;

use nri::{Handlers, PluginId};
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::{node::Node, notices::Notices, registry::Registry};
use crate::trace::EventLog;

pub struct Pods {
    pub node: Arc<Node>,
    pub registry: Arc<Registry>,
    pub notices: Notices,
    /// Locked from the check of a free cgroup until a record names it (`adjusted_cgroup.rs`).
    pub placing: Mutex<()>,
    /// The objects of an earlier daemon whose state is not known yet.
    pub recovering: TaskTracker,
}

impl Pods {
    /// Starts without pods: recovery finds them. `in_process`: in-process plugins.
    pub fn new(node: Node, log: EventLog, in_process: Vec<(PluginId, Handlers)>) -> Arc<Self> {
        let node = Arc::new(node);
        Arc::new(Self {
            notices: Notices::new(&node, log, in_process),
            node,
            registry: Arc::default(),
            placing: Mutex::default(),
            recovering: TaskTracker::new(),
        })
    }
}
