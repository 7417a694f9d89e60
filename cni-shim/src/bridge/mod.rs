//! The built-in network: a bridge with the gateway's address, and per pod a veth pair whose one end is made directly
//! in the pod's network namespace.
//!
//! ```text
//!   reserve ──► (record on disk) ──► connect ──► … ──► disconnect ──► release ──► (record removed)
//!   addresses,                       links, routes,     links, host    addresses,
//!   host ports                       host ports         ports          host ports
//! ```
//! Nothing is forked and one rtnetlink socket serves all pods. [`crate::Network`] owns the order above; this module
//! owns the links and the pools. All functions block for about a millisecond: not for an async thread.

mod error;
mod ipam;
mod ports;
mod state;
mod unplug;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use serde_json::json;

use crate::addr::{Cidr, Mac};
use crate::link;
use crate::namespaces::in_netns;
use crate::netlink::{Family, NetlinkError, Socket};
use crate::record::{Backend, Loaded, OnBridge, Record};
use crate::types::{Attach, Attachment, BridgeConfig, INTERFACE, NotReady};
pub use error::BridgeError;
pub use ipam::PoolError;
use state::State;
pub(crate) use unplug::delete_link;

/// The version of the result that is shown for the built-in network.
const RESULT_VERSION: &str = "1.0.0";

/// One bridge and the pods on it.
#[derive(Debug)]
pub(crate) struct Bridge {
    config: BridgeConfig,
    state: Mutex<State>,
}

impl Bridge {
    /// Takes over the addresses and ports that `records` hold. Touches no link yet.
    /// Also sets aside the addresses that records name which cannot be read.
    pub(crate) fn new(config: BridgeConfig, loaded: &Loaded) -> Result<Self, BridgeError> {
        validate(&config).map_err(|message| NotReady {
            reason: "InvalidBridgeConfiguration",
            message,
        })?;
        let mut state = State::open(&config)?;
        for address in loaded.unreadable.values().flat_map(|one| &one.addresses) {
            for pool in &mut state.pools {
                // Of another subnet, or taken: nobody is given it either way.
                let _ = pool.claim(*address);
            }
        }
        for (sandbox, held) in on_bridge(&loaded.records) {
            for address in &held.addresses {
                let claims: Vec<_> = state
                    .pools
                    .iter_mut()
                    .map(|pool| pool.claim(address.ip))
                    .collect();
                if claims.iter().all(Result::is_err) {
                    tracing::warn!(sandbox, %address, "the pod address is in none of the configured subnets");
                }
            }
            state.ports.claim(sandbox, &held.ports);
            state.firewall.remember(held);
        }
        Ok(Self {
            config,
            state: Mutex::new(state),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Makes sure the bridge, its addresses and rules are there; says why not.
    pub(crate) fn status(&self) -> Result<(), BridgeError> {
        self.state().ensure(&self.config).map(drop)
    }

    /// Sets addresses and host ports aside for a sandbox. No effect outside of memory.
    pub(crate) fn reserve(&self, attach: &Attach) -> Result<OnBridge, BridgeError> {
        let mut state = self.state();
        let ports: Vec<_> = attach
            .port_mappings
            .iter()
            .copied()
            .filter(|port| port.host_port > 0)
            .collect();
        state.ports.reserve(&attach.sandbox_id, &ports)?;
        let mut held = OnBridge {
            veth: veth_name(&attach.sandbox_id),
            addresses: Vec::with_capacity(2),
            ports,
        };
        for index in 0..state.pools.len() {
            match state.pools[index].take() {
                Ok(address) => held.addresses.push(address),
                Err(error) => {
                    state.release(&attach.sandbox_id, &held);
                    return Err(error.into());
                }
            }
        }
        Ok(held)
    }

    /// Makes what was reserved real. On failure the caller disconnects and releases.
    pub(crate) fn connect(&self, netns: &Path, held: &OnBridge) -> Result<Attachment, BridgeError> {
        let file = File::open(netns).map_err(BridgeError::io(format!(
            "open network namespace {}",
            netns.display()
        )))?;
        let gateways: Vec<IpAddr> = {
            let mut state = self.state();
            if state.index.is_none() {
                state.ensure(&self.config)?;
            }
            state.firewall.add_sources(held)?;
            state.plug(&self.config, held, file.as_fd())?;
            state.pools.iter().map(|pool| pool.gateway().ip).collect()
        };
        in_netns(netns, || configure_pod(&held.addresses, &gateways))??;
        if !held.ports.is_empty() {
            self.state().firewall.add_ports(held)?;
        }
        Ok(self.attachment(netns, held))
    }

    /// Undoes [`Bridge::connect`], as far as it came. Idempotent; the pod's namespace may be gone.
    pub(crate) fn disconnect(&self, held: &OnBridge) -> Result<(), BridgeError> {
        if !held.ports.is_empty() {
            self.state().firewall.remove_ports(held)?;
        }
        delete_link(&held.veth)?;
        Ok(self.state().firewall.remove_sources(held)?)
    }

    /// Gives addresses and host ports back, once nothing uses them any more.
    pub(crate) fn release(&self, sandbox_id: &str, held: &OnBridge) {
        self.state().release(sandbox_id, held);
    }

    /// What a sandbox has, from its record.
    pub(crate) fn attachment(&self, netns: &Path, held: &OnBridge) -> Attachment {
        let state = self.state();
        let gateways: Vec<IpAddr> = state.pools.iter().map(|pool| pool.gateway().ip).collect();
        let mac = held
            .addresses
            .first()
            .map(|address| Mac::of(address.ip).to_string());
        let gateway_of = |ip: IpAddr| {
            gateways
                .iter()
                .find(|gateway| gateway.is_ipv4() == ip.is_ipv4())
        };
        let ips = held.addresses.iter().map(|address| {
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
                { "name": held.veth },
                { "name": INTERFACE, "mac": mac, "sandbox": netns },
            ],
            "ips": ips.collect::<Vec<_>>(),
            "routes": routes.collect::<Vec<_>>(),
            "dns": {},
        });
        Attachment {
            ips: held.addresses.iter().map(|address| address.ip).collect(),
            mac,
            interface: INTERFACE.into(),
            gateways,
            network: self.config.name.clone(),
            result,
            warnings: Vec::new(),
        }
    }

    /// Removes the bridge and its rules. The next [`Bridge::status`] makes them again.
    pub(crate) fn remove(&self) -> Result<(), BridgeError> {
        let mut state = self.state();
        state.index = None;
        state.firewall.uninstall()?;
        Ok(delete_link(&self.config.name)?)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves the sockets usable (answers carry sequence numbers) and at worst an
        // address set aside.
        self.state.lock()
    }
}

/// The bridge's records, with the sandbox's id.
fn on_bridge(records: &BTreeMap<String, Record>) -> impl Iterator<Item = (&str, &OnBridge)> {
    records
        .iter()
        .filter_map(|(id, record)| match &record.backend {
            Backend::Bridge(held) => Some((id.as_str(), held)),
            Backend::Cni(_) => None,
        })
}

/// The pod's side, on a thread inside its network namespace.
fn configure_pod(addresses: &[Cidr], gateways: &[IpAddr]) -> Result<(), BridgeError> {
    let mut socket = Socket::open(Family::Route)?;
    let interface = link::find(&mut socket, INTERFACE)?.ok_or_else(|| NetlinkError {
        step: format!("look up {INTERFACE} in the pod"),
        errno: Errno::NODEV,
    })?;
    let ours = ["accept_ra", "addr_gen_mode"];
    for path in ours.map(|name| format!("/proc/sys/net/ipv6/conf/{INTERFACE}/{name}")) {
        // Neighbours are no routers, and the link-local address is the one that the spoof check expects. A kernel
        // without IPv6 has neither.
        match fs::write(&path, "0") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(BridgeError::io(format!("set {path} in the pod")))?,
        }
    }
    let mut steps = vec![link::loopback_up(), link::set_up(INTERFACE)];
    steps.extend(
        addresses
            .iter()
            .map(|address| link::add_address(interface.index, *address)),
    );
    steps.extend(
        gateways
            .iter()
            .map(|gateway| link::add_default_route(interface.index, *gateway)),
    );
    Ok(socket.run(&steps)?)
}

fn validate(config: &BridgeConfig) -> Result<(), String> {
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

/// A name for the host's end: 44 bits of the id's FNV-1a hash, so that it can be found again from the id alone.
pub(crate) fn veth_name(sandbox_id: &str) -> String {
    let hash = sandbox_id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("veth{:011x}", hash >> 20)
}
