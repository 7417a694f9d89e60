//! The built-in network: a bridge, and per pod a veth pair with one end in its network namespace.
//!
//! ```text
//!   reserve ──► (record on disk) ──► connect ──► … ──► disconnect ──► release ──► (record removed)
//!   addresses,                       links, routes,     links, host    addresses,
//!   host ports                       host ports         ports          host ports
//! ```
//! Nothing is forked, and one rtnetlink socket serves all pods. `attachments.rs` owns the order
//! above; this module owns the links and the pools. All functions block for about a millisecond:
//! not for an async thread.

mod error;
mod ipam;
mod limits;
mod ports;
mod state;
mod unplug;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use serde_json::json;

use crate::addr::Mac;
use crate::bandwidth::Limits;
use crate::link;
use crate::namespaces::in_netns;
use crate::netlink::{Family, NetlinkError, Socket};
use crate::nft::serves_loopback6;
use crate::record::{Backend, Loaded, OnBridge, Record};
use crate::route;
use crate::types::{Attach, Attachment, BridgeConfig, INTERFACE, NotReady, PortMapping};
pub use error::BridgeError;
pub use ipam::PoolError;
use limits::ifb_name;
use state::State;
use unplug::delete_link;

/// The version of the result shown for the built-in network.
const RESULT_VERSION: &str = "1.0.0";

/// One bridge and the pods on it.
#[derive(Debug)]
pub(crate) struct Bridge {
    config: BridgeConfig,
    state: Mutex<State>,
}

impl Bridge {
    /// Claims the addresses and ports of `records`, also of unreadable ones. Touches no link yet.
    pub(crate) fn new(config: BridgeConfig, loaded: &Loaded) -> Result<Self, BridgeError> {
        validate(&config)
            .map_err(|message| NotReady::new("InvalidBridgeConfiguration", message))?;
        let mut state = State::open(&config)?;
        for address in loaded.unreadable.values().flat_map(|one| &one.addresses) {
            for pool in &mut state.pools {
                // Of another subnet, or taken: not given out in either case.
                let _ = pool.claim(*address);
            }
        }
        for (sandbox, endpoint) in on_bridge(&loaded.records) {
            for address in &endpoint.addresses {
                let claims: Vec<_> = state
                    .pools
                    .iter_mut()
                    .map(|pool| pool.claim(address.ip))
                    .collect();
                if claims.iter().all(Result::is_err) {
                    tracing::warn!(sandbox, %address, "the pod address is in none of the configured subnets");
                }
            }
            state.ports.claim(sandbox, &endpoint.ports);
            state.firewall.remember(endpoint);
        }
        Ok(Self {
            config,
            state: Mutex::new(state),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Makes the missing parts of the bridge, its addresses and its rules. The error is the reason
    /// of a failure.
    pub(crate) fn status(&self) -> Result<(), BridgeError> {
        self.state().ensure(&self.config).map(drop)
    }

    /// Reserves addresses and host ports for a sandbox, in memory only.
    pub(crate) fn reserve(&self, attach: &Attach) -> Result<OnBridge, BridgeError> {
        let limits = Limits::of(&attach.annotations).map_err(BridgeError::Bandwidth)?;
        let ports = attach.port_mappings.iter().copied();
        let ports: Vec<_> = ports.filter(|port| port.host_port > 0).collect();
        let mut state = self.state();
        if let Some(port) = ports.iter().find(|port| is_at_loopback6(port))
            && !serves_loopback6()
        {
            return Err(BridgeError::Loopback6(port.to_string()));
        }
        state.ports.reserve(&attach.sandbox_id, &ports)?;
        let mut endpoint = OnBridge {
            veth: veth_name(&attach.sandbox_id),
            addresses: Vec::with_capacity(2),
            ports,
            limits,
        };
        for index in 0..state.pools.len() {
            match state.pools[index].take() {
                Ok(address) => endpoint.addresses.push(address),
                Err(error) => {
                    state.release(&attach.sandbox_id, &endpoint);
                    return Err(error.into());
                }
            }
        }
        Ok(endpoint)
    }

    /// Makes the reserved endpoint. After a failure the caller disconnects and releases.
    pub(crate) fn connect(
        &self,
        netns: &Path,
        endpoint: &OnBridge,
    ) -> Result<Attachment, BridgeError> {
        let file = File::open(netns).map_err(BridgeError::io(format!(
            "open network namespace {}",
            netns.display()
        )))?;
        let mut warnings = Vec::new();
        let gateways: Vec<IpAddr> = {
            let mut state = self.state();
            if state.index.is_none() || endpoint.ports.iter().any(is_at_loopback6) {
                state.ensure(&self.config)?;
            }
            state.firewall.add_sources(endpoint)?;
            state.plug(&self.config, endpoint, file.as_fd())?;
            warnings.extend(state.limit(endpoint));
            state.gateways()
        };
        in_netns(netns, || configure_pod(endpoint, &gateways))??;
        if !endpoint.ports.is_empty() {
            self.state().firewall.add_ports(endpoint)?;
        }
        let family = |port: &&PortMapping| {
            let v4 = |ip: IpAddr| ip.is_ipv4();
            let host = port.host_ip.map(v4);
            host.is_some_and(|host| endpoint.ips().all(|ip| v4(ip) != host))
        };
        warnings.extend(endpoint.ports.iter().filter(family).map(|port| {
            format!("host port {port} is not published: pods have no address of that family")
        }));
        Ok(self.attachment(netns, endpoint, warnings))
    }

    /// Undoes [`Bridge::connect`] after any of its steps. Idempotent, even without the namespace.
    pub(crate) fn disconnect(&self, endpoint: &OnBridge) -> Result<(), BridgeError> {
        if !endpoint.ports.is_empty() {
            self.state().firewall.remove_ports(endpoint)?;
        }
        unplug(endpoint)?;
        Ok(self.state().firewall.remove_sources(endpoint)?)
    }

    /// Releases addresses and host ports, after their last use.
    pub(crate) fn release(&self, sandbox_id: &str, endpoint: &OnBridge) {
        self.state().release(sandbox_id, endpoint);
    }

    /// Describes a sandbox's network.
    fn attachment(&self, netns: &Path, endpoint: &OnBridge, warnings: Vec<String>) -> Attachment {
        let gateways = self.state().gateways();
        let mac = endpoint.ips().next().map(|ip| Mac::of(ip).to_string());
        let gateway_of = |ip: IpAddr| {
            gateways
                .iter()
                .find(|gateway| gateway.is_ipv4() == ip.is_ipv4())
        };
        let ips = endpoint.addresses.iter().map(|address| {
            json!({ "address": address, "gateway": gateway_of(address.ip), "interface": 2 })
        });
        let default = |gateway: &IpAddr| {
            if gateway.is_ipv4() {
                "0.0.0.0/0"
            } else {
                "::/0"
            }
        };
        let routes = gateways
            .iter()
            .map(|gateway| json!({ "dst": default(gateway), "gw": gateway }));
        let result = json!({
            "cniVersion": RESULT_VERSION,
            "interfaces": [
                { "name": self.config.name },
                { "name": endpoint.veth },
                { "name": INTERFACE, "mac": mac, "sandbox": netns },
            ],
            "ips": ips.collect::<Vec<_>>(),
            "routes": routes.collect::<Vec<_>>(),
            "dns": {},
        });
        Attachment {
            ips: endpoint.ips().collect(),
            network: self.config.name.clone(),
            result,
            warnings,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // After a panic the sockets are usable (sequence numbers); at worst an address is reserved.
        self.state.lock()
    }
}

/// The bridge's records, by sandbox id.
fn on_bridge(records: &BTreeMap<String, Record>) -> impl Iterator<Item = (&str, &OnBridge)> {
    records
        .iter()
        .filter_map(|(id, record)| match &record.backend {
            Backend::Bridge(endpoint) => Some((id.as_str(), endpoint)),
            Backend::Cni(_) => None,
        })
}

/// Configures the pod's side, on a thread inside its network namespace.
fn configure_pod(endpoint: &OnBridge, gateways: &[IpAddr]) -> Result<(), BridgeError> {
    let mut socket = Socket::open(Family::Route)?;
    let interface = link::find(&mut socket, INTERFACE)?.ok_or_else(|| NetlinkError {
        step: format!("look up {INTERFACE} in the pod"),
        errno: Errno::NODEV,
    })?;
    let ours = ["accept_ra", "addr_gen_mode"];
    for path in ours.map(|key| format!("/proc/sys/net/ipv6/conf/{INTERFACE}/{key}")) {
        // Pods must ignore routers, and use the link-local address that the spoof check expects. A
        // kernel without IPv6 has neither parameter.
        match fs::write(&path, "0") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(BridgeError::io(format!("set {path} in the pod")))?,
        }
    }
    let mut steps = vec![link::loopback_up(), link::set_up(INTERFACE)];
    steps.extend(
        endpoint
            .addresses
            .iter()
            .map(|address| link::add_address(interface.index, *address)),
    );
    steps.extend(
        gateways
            .iter()
            .map(|gateway| route::add_default_route(interface.index, *gateway)),
    );
    Ok(socket.run(&steps)?)
}

pub(crate) fn validate(config: &BridgeConfig) -> Result<(), String> {
    let word = |name: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.bytes().all(plain)
    };
    if !word(&config.name) || config.name.len() > 15 {
        return Err(format!(
            "invalid bridge name {:?}: at most 15 letters, digits, '_' and '-' are allowed",
            config.name
        ));
    }
    if !word(&config.table) || config.table.len() > 64 {
        return Err(format!(
            "invalid table name {:?}: at most 64 letters, digits, '_' and '-' are allowed",
            config.table
        ));
    }
    match config.subnets.as_slice() {
        [_] => Ok(()),
        [one, other] if one.ip.is_ipv4() != other.ip.is_ipv4() => Ok(()),
        _ => Err("expected one subnet, or one IPv4 and one IPv6 subnet".into()),
    }
}

/// Removes a pod's links from the node; missing ones are fine.
pub(crate) fn unplug(endpoint: &OnBridge) -> Result<(), NetlinkError> {
    delete_link(&endpoint.veth)?;
    match endpoint.limits {
        Some(_) => delete_link(&ifb_name(&endpoint.veth)),
        None => Ok(()),
    }
}

/// The same for a sandbox's id only.
pub(crate) fn unplug_name(sandbox_id: &str) -> Result<(), NetlinkError> {
    let veth = veth_name(sandbox_id);
    delete_link(&veth)?;
    delete_link(&ifb_name(&veth))
}

fn is_at_loopback6(port: &PortMapping) -> bool {
    port.host_ip == Some(Ipv6Addr::LOCALHOST.into())
}

/// The name of the host's end: 44 bits of the id's FNV-1a hash, so that the id alone finds it.
fn veth_name(sandbox_id: &str) -> String {
    let hash = sandbox_id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("veth{:011x}", hash >> 20)
}
