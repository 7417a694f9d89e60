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

pub mod ipam;
mod ports;
mod setup;
mod unplug;

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use serde_json::json;

use crate::addr::{Cidr, Mac};
use crate::link::{self, VethPair};
use crate::namespaces::in_netns;
use crate::netlink::{Family, NetlinkError, Socket};
use crate::nft::Firewall;
use crate::record::{Backend, OnBridge, Record};
use crate::types::{Attach, Attachment, BridgeConfig, INTERFACE, NetworkError, NotReady};
use ipam::Pool;
use ports::Ports;
pub use unplug::delete_link;

/// The version of the result that is shown for the built-in network.
const RESULT_VERSION: &str = "1.0.0";

/// One bridge and the pods on it.
#[derive(Debug)]
pub struct Bridge {
    config: BridgeConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    route: Socket,
    firewall: Firewall,
    pools: Vec<Pool>,
    ports: Ports,
    /// The bridge's index once it is known to be complete.
    index: Option<u32>,
}

impl Bridge {
    /// Takes over the addresses and ports that `records` hold. Touches no link yet.
    pub fn new(
        config: BridgeConfig,
        records: &BTreeMap<String, Record>,
    ) -> Result<Self, NetworkError> {
        validate(&config).map_err(|message| NotReady {
            reason: "InvalidBridgeConfiguration",
            message,
        })?;
        let mut state = State {
            route: Socket::open(Family::Route)?,
            firewall: Firewall::open(&config)?,
            pools: config
                .subnets
                .iter()
                .map(|subnet| Pool::new(*subnet))
                .collect::<Result<_, _>>()?,
            ports: Ports::default(),
            index: None,
        };
        for (sandbox, held) in on_bridge(records) {
            for address in &held.addresses {
                let claims: Vec<_> = state
                    .pools
                    .iter_mut()
                    .map(|pool| pool.claim(address.ip))
                    .collect();
                if claims.iter().all(Result::is_err) {
                    tracing::warn!(sandbox, %address, "a pod's address is of none of the configured subnets");
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

    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Makes sure the bridge, its addresses and rules are there; says why not.
    pub fn status(&self) -> Result<(), NetworkError> {
        self.state().ensure(&self.config).map(drop)
    }

    /// Sets addresses and host ports aside for a sandbox. No effect outside of memory.
    pub fn reserve(&self, attach: &Attach) -> Result<OnBridge, NetworkError> {
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
    pub fn connect(&self, netns: &Path, held: &OnBridge) -> Result<Attachment, NetworkError> {
        let file = File::open(netns).map_err(NetworkError::io(format!(
            "open network namespace {}",
            netns.display()
        )))?;
        let gateways: Vec<IpAddr> = {
            let mut state = self.state();
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
    pub fn disconnect(&self, held: &OnBridge) -> Result<(), NetworkError> {
        if !held.ports.is_empty() {
            self.state().firewall.remove_ports(held)?;
        }
        Ok(delete_link(&held.veth)?)
    }

    /// Gives addresses and host ports back, once nothing uses them any more.
    pub fn release(&self, sandbox_id: &str, held: &OnBridge) {
        self.state().release(sandbox_id, held);
    }

    /// What a sandbox has, from its record.
    pub fn attachment(&self, netns: &Path, held: &OnBridge) -> Attachment {
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
    pub fn remove(&self) -> Result<(), NetworkError> {
        let mut state = self.state();
        state.index = None;
        state.firewall.uninstall()?;
        Ok(delete_link(&self.config.name)?)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves the sockets usable (answers carry sequence numbers) and at worst an
        // address set aside.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Makes the veth pair. Once more after setting the bridge up again, should it have been deleted meanwhile; or
    /// after deleting a pair of the same name, which only an interrupted attach of the same sandbox can have left.
    fn plug(
        &mut self,
        config: &BridgeConfig,
        held: &OnBridge,
        netns: std::os::fd::BorrowedFd<'_>,
    ) -> Result<(), NetworkError> {
        let mut retried = false;
        loop {
            let bridge = match self.index {
                Some(index) => index,
                None => self.ensure(config)?,
            };
            let pair = VethPair {
                host_name: &held.veth,
                bridge,
                pod_name: INTERFACE,
                pod_mac: Mac::of(held.addresses[0].ip),
                netns,
                mtu: config.mtu,
            };
            match self
                .route
                .run(&[link::add_veth(&pair), link::set_hairpin(&held.veth)])
            {
                Err(error) if !retried && matches!(error.errno, Errno::NODEV | Errno::INVAL) => {
                    self.index = None;
                }
                Err(error) if !retried && error.errno == Errno::EXIST => {
                    self.route.run(&[link::delete(&held.veth)])?;
                }
                other => return Ok(other?),
            }
            retried = true;
        }
    }

    fn release(&mut self, sandbox_id: &str, held: &OnBridge) {
        for address in &held.addresses {
            self.pools
                .iter_mut()
                .for_each(|pool| pool.release(address.ip));
        }
        self.ports.release(sandbox_id);
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
fn configure_pod(addresses: &[Cidr], gateways: &[IpAddr]) -> Result<(), NetworkError> {
    let mut socket = Socket::open(Family::Route)?;
    let interface = link::find(&mut socket, INTERFACE)?.ok_or_else(|| NetlinkError {
        step: format!("look up {INTERFACE} in the pod"),
        errno: Errno::NODEV,
    })?;
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
            "bridge name {:?} is not a word of at most 15 letters, digits, '_', '-'",
            config.name
        ));
    }
    if !word(&config.table) || config.table.len() > 64 {
        return Err(format!(
            "table name {:?} is not a word of at most 64 letters, digits, '_', '-'",
            config.table
        ));
    }
    match config.subnets.as_slice() {
        [_] => Ok(()),
        [one, other] if one.ip.is_ipv4() != other.ip.is_ipv4() => Ok(()),
        _ => Err("one subnet is needed, or one of IPv4 and one of IPv6".into()),
    }
}

/// A name for the host's end: 44 bits of the id's FNV-1a hash, so that it can be found again from the id alone.
fn veth_name(sandbox_id: &str) -> String {
    let hash = sandbox_id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("veth{:011x}", hash >> 20)
}
