//! The rules of the built-in network.
//!
//! ```text
//! table ip <name> {                                     (and ip6, with ::1 for 127/8)
//!   map hostports   { type inet_proto . inet_service : ipv4_addr . inet_service }
//!   map hostipports { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//!   chain hostports   { dnat by hostipports; dnat by hostports }
//!   chain prerouting  { nat, dstnat;  to an address of this node: jump hostports }
//!   chain output      { nat, dstnat;  to an address of this node: jump hostports }
//!   chain postrouting { nat, srcnat;  from 127/8 out by the bridge: masquerade
//!                                     pod to pod after a dnat: masquerade
//!                                     pod to subnets of non_masquerade_cidrs: accept
//!                                     pod to elsewhere: masquerade }
//!   chain guard       { filter, raw;  in by the bridge to 127/8: drop }
//! }
//! table bridge <name> {                                 (where the spoof check is on)
//!   set ports { type ifname }                 set macs { type ifname . ether_addr }
//!   set addresses4 { type ifname . ipv4_addr }    set addresses6 { type ifname . ipv6_addr }
//!   chain spoof_check { filter, prerouting;  by a pod's port without the pod's addresses: drop }
//! }
//! ```
//! Answers to host ports at `::1` also need a route, see [`crate::route::add_loopback6_route`].
//!
//! Each start of the daemon replaces the tables atomically; pods add and remove elements. The guard
//! makes `route_localnet` safe. It may drop all packets to 127/8, because answers to the loopback
//! are addressed to the gateway.

mod conntrack;
mod expr;
mod family;
mod nat;
mod spoof_check;
mod table;

use std::fs;

use rustix::io::Errno;

use crate::netlink::{Family, Message, NetlinkError, Socket};
use crate::record::OnBridge;
use crate::types::BridgeConfig;
use family::{BRIDGE, Ip};
use table::{Change, Element, Table};

/// Limit of elements per transaction, which fit a socket's send buffer.
const TRANSACTION_MAX: usize = 500;

/// Whether host ports at `::1` can be served. With this parameter set, bridges pass frames to the
/// rules of `ip6` too early: answers to `::1` are then dropped as if they came from the wire.
pub(crate) fn serves_loopback6() -> bool {
    let shown = fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-ip6tables");
    shown.map_or(true, |text| text.trim() == "0")
}

/// Checks that the kernel has nftables and allows access.
pub fn probe() -> Result<(), NetlinkError> {
    let mut socket = Socket::open(Family::Netfilter)?;
    socket.ask(&table::generation()).map(drop)
}

/// The tables of one bridge, and the socket to change them.
#[derive(Debug)]
pub(crate) struct Firewall {
    socket: Socket,
    table: Table,
    config: BridgeConfig,
    /// Whether the rules serve host ports at `::1`.
    loopback6: bool,
    /// All elements that belong in the sets and maps.
    elements: Vec<Element>,
}

impl Firewall {
    pub(crate) fn open(config: &BridgeConfig) -> Result<Self, NetlinkError> {
        Ok(Self {
            socket: Socket::open(Family::Netfilter)?,
            table: Table(config.table.clone()),
            config: config.clone(),
            loopback6: serves_loopback6(),
            elements: Vec::new(),
        })
    }

    /// Adds a pod of an earlier run for the next [`Firewall::install`].
    pub(crate) fn remember(&mut self, endpoint: &OnBridge) {
        self.elements.extend(nat::elements(endpoint));
        self.elements.extend(self.sources(endpoint));
    }

    /// Replaces the tables, with all known elements, in one transaction or, beyond a datagram,
    /// more.
    pub(crate) fn install(&mut self) -> Result<(), NetlinkError> {
        let mut steps = Vec::new();
        self.loopback6 = serves_loopback6();
        for subnet in &self.config.subnets {
            let loopback = self.loopback6 || subnet.ip.is_ipv4();
            nat::steps(&self.table, &self.config, *subnet, loopback, &mut steps);
        }
        if self.config.spoof_check {
            spoof_check::steps(&self.table, &mut steps);
        } else {
            steps.extend(self.table.remove(BRIDGE));
        }
        let fitting = self.elements.len().min(TRANSACTION_MAX);
        let (first, rest) = self.elements.split_at(fitting);
        let rest = rest.to_vec();
        steps.extend(
            first
                .iter()
                .map(|element| self.table.element(Change::Add, element)),
        );
        self.transact(&steps)?;
        self.change(Change::Add, &rest)
    }

    /// Restores removed tables (`nft flush ruleset`), and adapts them to changed parameters.
    pub(crate) fn heal(&mut self) -> Result<(), NetlinkError> {
        if self.loopback6 != serves_loopback6() {
            return self.install();
        }
        for family in self.families() {
            let request = self.table.look_up(family).tolerate(Errno::NOENT);
            if self.socket.ask(&request)?.is_empty() {
                tracing::warn!(
                    table = self.table.0,
                    "an nftables table was removed; restoring it"
                );
                return self.install();
            }
        }
        Ok(())
    }

    /// Allows a pod to send under its own addresses only. Must precede its link.
    pub(crate) fn add_sources(&mut self, endpoint: &OnBridge) -> Result<(), NetlinkError> {
        let added = self.sources(endpoint);
        self.add(added)
    }

    /// Removes a pod's addresses. Must follow its link's removal: other ports are not checked.
    pub(crate) fn remove_sources(&mut self, endpoint: &OnBridge) -> Result<(), NetlinkError> {
        let removed = self.sources(endpoint);
        self.remove(&removed)
    }

    /// Opens a pod's host ports. On failure the caller closes the opened ones.
    pub(crate) fn add_ports(&mut self, endpoint: &OnBridge) -> Result<(), NetlinkError> {
        self.add(nat::elements(endpoint).collect())?;
        conntrack::forget_udp(&mut self.socket, endpoint)
    }

    /// Closes a pod's host ports; skips closed ones.
    pub(crate) fn remove_ports(&mut self, endpoint: &OnBridge) -> Result<(), NetlinkError> {
        let removed: Vec<Element> = nat::elements(endpoint).collect();
        self.remove(&removed)?;
        conntrack::forget_udp(&mut self.socket, endpoint)
    }

    fn sources(&self, endpoint: &OnBridge) -> Vec<Element> {
        if self.config.spoof_check {
            spoof_check::elements(endpoint)
        } else {
            Vec::new()
        }
    }

    /// The families with a table of ours.
    fn families(&self) -> Vec<u8> {
        let subnets = self.config.subnets.iter();
        let ip = subnets.map(|subnet| Ip::of(subnet.ip) as u8);
        ip.chain(self.config.spoof_check.then_some(BRIDGE))
            .collect()
    }

    fn add(&mut self, added: Vec<Element>) -> Result<(), NetlinkError> {
        match self.change(Change::Add, &added) {
            Err(error) if error.errno == Errno::NOENT => {
                self.heal()?;
                self.change(Change::Add, &added)?;
            }
            other => other?,
        }
        self.elements.extend(added);
        Ok(())
    }

    fn remove(&mut self, removed: &[Element]) -> Result<(), NetlinkError> {
        if let Err(error) = self.change(Change::Remove, removed) {
            if error.errno != Errno::NOENT {
                return Err(error);
            }
            // A missing element undid the removal of the others: remove each separately.
            for element in removed {
                let step = self.table.element(Change::Remove, element);
                self.transact(&[step.tolerate(Errno::NOENT)])?;
            }
        }
        self.elements.retain(|known| !removed.contains(known));
        Ok(())
    }

    /// Adds or removes elements, in chunks that fit a datagram.
    fn change(&mut self, change: Change, elements: &[Element]) -> Result<(), NetlinkError> {
        elements.chunks(TRANSACTION_MAX).try_for_each(|chunk| {
            let steps: Vec<Message> = chunk
                .iter()
                .map(|element| self.table.element(change, element))
                .collect();
            self.transact(&steps)
        })
    }

    fn transact(&mut self, steps: &[Message]) -> Result<(), NetlinkError> {
        let [begin, end] = self.table.frame();
        self.socket.transact(&begin, steps, &end)
    }
}
