//! What both services have; each RPC is handed what it uses, Status all of it.

use std::sync::Arc;

use cni_shim::Network;

use super::statistics::Statistics;
use crate::{
    config::Config,
    image::Images,
    oci::{HostFacts, Policies},
    pod::{
        events::Events, hooks::Hooks, registry::Registry, run_pod_sandbox::RunPodSandbox,
        spec::SpecStore,
    },
    stream::Streams,
};

/// The longest message either way; stock clients accept as much (CRI-002).
pub const MAX_MESSAGE: usize = 16 << 20;

/// Both services on one socket.
#[derive(Clone)]
pub struct Cri {
    pub config: Arc<Config>,
    pub host: Arc<HostFacts>,
    pub policies: Policies,
    pub network: Arc<Network>,
    pub hooks: Arc<Hooks>,
    pub pods: Arc<Registry>,
    pub specs: SpecStore,
    pub images: Images,
    pub events: Events,
    pub run_pod_sandbox: Arc<RunPodSandbox>,
    pub statistics: Arc<Statistics>,
    pub streams: Arc<Streams>,
}
