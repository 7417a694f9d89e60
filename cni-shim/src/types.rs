//! Configuration, requests and results of a [`crate::Network`].

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::addr::Cidr;

/// The name of a pod's interface (CRI-510).
pub const INTERFACE: &str = "eth0";

/// Configuration of the network. Two daemons on one machine need different `state_dir`s and
/// bridges. The default has neither timeouts nor directories for CNI plugins.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Directory of CNI configurations (CRI-500).
    pub conf_dir: PathBuf,
    /// Directories of CNI plugins, in search order.
    pub bin_dirs: Vec<PathBuf>,
    /// Parent of the result cache shared with other runtimes: `<cache_dir>/results` (CRI-530).
    pub cache_dir: PathBuf,
    /// An earlier version's directory of these results, which are moved when the network is opened.
    pub earlier_cache_dir: Option<PathBuf>,
    /// Private to us: one record per attached sandbox.
    pub state_dir: PathBuf,
    /// Used if `conf_dir` has no configuration; `None`: no network then.
    pub bridge: Option<BridgeConfig>,
    /// Timeout of a CNI ADD with its retries; a DEL gets one minute (CRI-518).
    pub add_timeout: Duration,
    /// How long a sandbox waits for a ready network.
    pub ready_timeout: Duration,
    /// How long plugins that were ready may fail before the network counts as not ready (CRI-503).
    pub status_grace: Duration,
    /// Limit of concurrent CNI operations.
    pub parallel: usize,
    /// Called with the pid of each started CNI plugin, to change inherited settings.
    pub started: Option<fn(u32)>,
    /// Called before access to configured paths.
    pub answers: Answers,
}

/// The answer of [`Answers::by`].
pub type Asked = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Checks that paths answer: their file system may not. The default checks nothing.
#[derive(Clone, Default)]
pub struct Answers(Option<Arc<dyn Fn(Vec<PathBuf>) -> Asked + Send + Sync>>);

impl Answers {
    /// `ask` returns the first path that does not answer as its error.
    pub fn by(ask: impl Fn(Vec<PathBuf>) -> Asked + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(ask)))
    }

    pub(crate) async fn of(&self, paths: Vec<PathBuf>) -> Result<(), String> {
        match &self.0 {
            Some(ask) => ask(paths).await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

/// The built-in network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeConfig {
    /// The bridge, at most 15 bytes. Made if missing.
    pub name: String,
    /// The name of our nftables tables (`ip`, and `ip6` with an IPv6 subnet). Replaced at start.
    pub table: String,
    /// One IPv4 and at most one IPv6 subnet, or one of either; the first gives the primary address.
    pub subnets: Vec<Cidr>,
    /// Whether pods leave the node under the node's address.
    pub masquerade: bool,
    /// Subnets without masquerading: of pods of other nodes, which have routes to ours.
    pub non_masquerade_cidrs: Vec<Cidr>,
    /// Whether pods are kept from sending under foreign addresses, and as routers.
    pub spoof_check: bool,
    /// MTU of the bridge and the pods; the kernel's default (1500) when `None`.
    pub mtu: Option<u32>,
}

/// Request to attach a sandbox.
#[derive(Debug, Clone, Default)]
pub struct Attach {
    pub sandbox_id: String,
    /// The pinned network namespace.
    pub netns: PathBuf,
    pub pod_name: String,
    pub pod_namespace: String,
    pub pod_uid: String,
    /// The pod's annotations, for bandwidth limits (CRI-520).
    pub annotations: BTreeMap<String, String>,
    /// Entries without a host port are dropped.
    pub port_mappings: Vec<PortMapping>,
    /// For plugins with the capability `cgroupPath`.
    pub cgroup_parent: Option<String>,
    pub dns: Option<Dns>,
    /// Kernel parameters, as for [`crate::namespaces::pin`]: the interface's are set here.
    pub sysctls: Vec<(String, String)>,
}

/// A host port that leads to a port of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    pub protocol: Protocol,
    /// Only at this address of the node. `None` is all; an unspecified one, all of its family.
    #[serde(rename = "hostIP", default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
}

impl fmt::Display for PortMapping {
    /// The node's end: `8080/tcp at 127.0.0.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host_port, self.protocol)?;
        self.host_ip.map_or(Ok(()), |ip| write!(f, " at {ip}"))
    }
}

/// Protocols, by their number in IP headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Protocol {
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

/// Name servers for plugins with that capability.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// A sandbox's present network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The primary address first (CRI-117); never empty.
    pub ips: Vec<IpAddr>,
    /// Name of the CNI network, or of the bridge.
    pub network: String,
    /// The CNI result, also made for the built-in bridge (for `info.cniResult`, CRI-123).
    pub result: serde_json::Value,
    /// Requested features that are not in effect, one line each (CRI-537).
    pub warnings: Vec<String>,
}

/// The reason why no pod can get a network now (CRI-503).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct NotReady {
    /// One CamelCase word.
    pub reason: &'static str,
    pub message: String,
}

impl NotReady {
    pub(crate) fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }
}
